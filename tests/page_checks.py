"""Rules of accessibility that a page must keep, checked in the browser. If WEFT_AXE is the path of axe.min.js, axe-core checks the
page as well."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# Returns a list of problems. Colors are drawn on a canvas, which knows every notation of CSS.
RULES = """() => {
  const problems = [], canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) known.set(color, draw(color));
    return known.get(color);
  };
  const draw = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((value, index) => value * top[3] + below[index] * (1 - top[3]));
  const background = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(rgba(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const luminance = (color) => {
    const [r, g, b] = color.map((value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const name = (element) => {
    const by = element.getAttribute("aria-labelledby");
    const labels = [...(element.labels ?? [])].map((label) => label.textContent).join(" ");
    const given = by ? by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ") : "";
    return (element.getAttribute("aria-label") || given || labels || element.textContent || element.alt || "").trim();
  };
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest("[aria-hidden=true]");
  const tell = (what, element) => problems.push(`${what}: ${element.outerHTML.slice(0, 120)}`);

  if (!document.documentElement.lang) problems.push("html has no lang");
  if (!document.title) problems.push("no title");
  for (const landmark of ["main", "nav", "header"]) {
    if (document.querySelectorAll(landmark).length !== 1) problems.push(`not one ${landmark}`);
  }
  if (document.querySelectorAll("h1").length !== 1) problems.push("not one h1");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) problems.push("ids are not unique");
  let level = 0;
  for (const heading of document.querySelectorAll("main :is(h1, h2, h3, h4)")) {
    if (!isShown(heading)) continue;
    const next = Number(heading.localName[1]);
    if (next > level + 1) tell("heading skips a level", heading);
    level = next;
  }
  const controls = "button, a[href], input, select, textarea, summary, [role=button], [role=tab], [tabindex='0'], audio";
  for (const element of document.querySelectorAll(controls)) {
    if (isShown(element) && !name(element)) tell("no name", element);
  }
  for (const element of document.querySelectorAll("img")) if (!element.hasAttribute("alt")) tell("no alt", element);
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !isShown(element) || element.closest(":disabled, .visually-hidden, .skip")) continue;
    const style = getComputedStyle(element), below = background(element);
    const [a, b] = [over(rgba(style.color), below), below].map(luminance).sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700);
    if ((a + 0.05) / (b + 0.05) < (isLarge ? 3 : 4.5)) tell(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`, element);
  }
  return problems;
}"""

AXE = """() => axe.run(document, { resultTypes: ["violations"] }).then((result) =>
  result.violations.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 120)}`))"""


def accessibility_problems(page: Any) -> list[str]:
    """What is wrong with an open page."""
    problems: list[str] = page.evaluate(RULES)
    if path := os.environ.get("WEFT_AXE"):
        page.evaluate(Path(path).read_text(encoding="utf-8") + ";0")
        problems += page.evaluate(AXE)
    return problems


def focus_is_visible(page: Any) -> bool:
    """Whether the focused element, or its label or box, has an outline."""
    script = """() => {
      const element = document.activeElement, boxes = [element, element.closest("label"), element.closest(".drop")];
      return boxes.some((box) => box && getComputedStyle(box).outlineStyle !== "none" && parseFloat(getComputedStyle(box).outlineWidth) >= 2);
    }"""
    return bool(page.evaluate(script))
