// Pictures of the server: SVG that is checked, and drawn in a shadow tree with its own style sheet.
import { el } from "./dom.js";

const ELEMENTS = new Set(
  "svg g rect text tspan path line polyline polygon circle ellipse title desc image defs clipPath mask linearGradient stop".split(" "),
);
const STYLE = /<style>(.*?)<\/style>/gs; // the text of the pictures is escaped, so that nothing else matches
const DARK = /@media screen and \(prefers-color-scheme:\s?dark\)/g;
const figures = new Set();

/** Why an SVG is not drawn; null if it holds nothing but shapes and text. */
export function problemOf(svg) {
  if (svg.localName !== "svg") return "not an SVG";
  for (const element of [svg, ...svg.querySelectorAll("*")]) {
    if (!ELEMENTS.has(element.localName)) return `element ${element.localName}`;
    for (const { localName, value } of element.attributes) {
      if (localName.startsWith("on")) return `attribute ${localName}`;
      if (localName === "href" && !/^(#|data:image\/(png|jpeg|webp);)/.test(value)) return "address";
    }
  }
  return null;
}

/** The style sheet for the chosen theme; "" follows the system. */
function sheetOf(css, theme) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(theme ? css.replace(DARK, theme === "dark" ? "@media screen" : "@media not all") : css);
  return sheet;
}

export function updateThemes() {
  const theme = document.documentElement.dataset.theme ?? "";
  for (const reference of figures) {
    const figure = reference.deref();
    if (figure) figure.root.adoptedStyleSheets = [sheetOf(figure.css, theme)];
    else figures.delete(reference);
  }
}

/** An SVG of the server as an element with this name. */
export function picture(source, name) {
  let css = "";
  const plain = source.replace(STYLE, (_, style) => { css += style; return ""; }).replaceAll(' style="', ' data-style="');
  const svg = new DOMParser().parseFromString(plain, "image/svg+xml").documentElement;
  const problem = problemOf(svg);
  if (problem) return el("p", { class: "note", text: `The picture is not shown: ${problem}.` });
  const host = el("div", { class: "picture" }), root = host.attachShadow({ mode: "open" });
  const shown = document.importNode(svg, true);
  shown.setAttribute("role", "img");
  shown.setAttribute("aria-label", name);
  for (const element of shown.querySelectorAll("[data-style]")) element.style.cssText = element.getAttribute("data-style");
  root.append(shown);
  host.root = root;
  host.css = `${css} svg{max-width:none!important;display:block;color:inherit}`;
  figures.add(new WeakRef(host));
  root.adoptedStyleSheets = [sheetOf(host.css, document.documentElement.dataset.theme ?? "")];
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name }, host);
}

export function pictures(sources, name) {
  return sources.map((source, index) => el("figure", {}, picture(source, sources.length > 1 ? `${name}, picture ${index + 1}` : name)));
}
