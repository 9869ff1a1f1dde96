// Predictions, shown by what their records hold. Each function returns {element, units, summary, view, onView}: the units are
// compared between runs, and the view is the explanation that is shown at once.
import { count, el, facts, fixed, hidden, percent, setVars, visible } from "./dom.js";

const HUES = 8;

/** A text as words that can be compared. */
export function words(text) {
  const units = [], parts = [];
  for (const part of text.split(/(\s+)/)) {
    if (!part) continue;
    if (/^\s+$/.test(part)) { parts.push(part); continue; }
    const element = el("span", { text: part });
    units.push({ text: part, elements: [element] });
    parts.push(element);
  }
  return { parts, units };
}

export function bar(value, label = null) {
  return setVars(el("span", { class: "level", role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" }), { value });
}

// ---- labels

/** How sure a classifier is, in words. */
export function confidence(entries, isMulti) {
  if (isMulti) return "Each label has its own probability; those above 50% are predicted.";
  const [[best, first], [next, second] = ["", 0]] = entries, outOf = Math.round(100 * first);
  const sure = first >= 0.95 ? `Very sure: ${best}.` : first >= 0.8 ? `Sure: ${best}.` : first - second < 0.15
    ? `Undecided between ${best} and ${next}.` : `More likely ${best} than ${next}.`;
  return `${sure} If the model is calibrated, about ${outOf} of 100 predictions with this probability are right; weft evaluate measures that (ECE).`;
}

function labels(record) {
  const entries = Object.entries(record.probabilities).sort((a, b) => b[1] - a[1]);
  if (!entries.length) return { element: el("p", { class: "note", text: "No text, no label." }), units: [], summary: "no label" };
  const sum = entries.reduce((total, [, value]) => total + value, 0), isMulti = Math.abs(sum - 1) > 1e-3;
  const units = [], rows = entries.map(([label, value]) => {
    const isChosen = record.labels.includes(label);
    const name = el("span", { class: "name" }, isChosen ? el("span", { "aria-hidden": "true", text: "\u2713 " }) : "", label);
    const row = el("li", { class: isChosen ? "chosen" : null }, name, el("span", { class: "value", text: percent(value) }), bar(value));
    units.push({ text: `${label} ${isChosen}`, elements: [name] });
    return row;
  });
  const list = el("ul", { class: "bars", "aria-label": "Probabilities of the labels" }, rows);
  const chosen = record.labels.length ? record.labels.join(", ") : "no label";
  const element = el("div", {}, el("p", { class: "headline", text: chosen }), list, el("p", { class: "note", text: confidence(entries, isMulti) }));
  return { element, units, summary: `${chosen}, ${percent(entries[0][1])}`, view: "attribution", labels: chosen, probabilities: record.probabilities };
}

// ---- tags

const typeOf = (tag) => tag.replace(/^[BIESLU]-/, "");

function hues(run) {
  const types = [...new Set((run.labels ?? []).filter((label) => label !== "O").map(typeOf))];
  return (type) => Math.max(0, types.indexOf(type)) % HUES;
}

function tags(record, { run }) {
  const hue = hues(run), line = el("p", { class: "tagged" }), units = [], scores = [];
  const isSpans = run.labels.some((label) => /^[BIESLU]-/.test(label));
  const groups = isSpans
    ? record.spans.map((span) => ({ ...span }))
    : record.words.map((_, index) => ({ type: record.tags[index], start: index, end: index + 1 }));
  const counts = new Map();
  let index = 0;
  const plain = (end) => {
    for (; index < end; index++) {
      const span = el("span", { text: record.words[index] });
      units.push({ text: `${record.words[index]} O`, elements: [span] });
      line.append(span, " ");
    }
  };
  for (const { type, start, end } of groups) {
    plain(start);
    counts.set(type, (counts.get(type) ?? 0) + 1);
    const score = el("span", { class: "score" });
    const text = record.words.slice(start, end).join(" ");
    const element = el("span", { class: `span c${hue(type)}` }, text, el("small", {}, " ", type, score));
    scores.push({ score, start, end });
    units.push({ text: `${text} ${type}`, elements: [element] });
    line.append(element, " ");
    index = end;
  }
  plain(record.words.length);
  const legend = el("ul", { class: "legend", "aria-label": "Types" }, [...counts].map(([type, number]) =>
    el("li", {}, el("span", { class: `span c${hue(type)}`, text: type }), ` ${number}`)));
  /** The probabilities of the tags are in the explanation; that of a span is the smallest of its tags. */
  const onView = ({ view, data }) => {
    if (view !== "attribution" || data.outputs?.length !== record.words.length) return;
    for (const { score, start, end } of scores) {
      const least = Math.min(...data.outputs.slice(start, end).map((output) => output.probability));
      score.textContent = ` ${percent(least)}`;
    }
  };
  const summary = groups.length && isSpans ? groups.map(({ type, start, end }) => `${record.words.slice(start, end).join(" ")}: ${type}`).join(", ") : count(record.words.length, "word");
  return { element: el("div", {}, line, legend), units, summary, view: "attribution", onView };
}

// ---- answers

function answer(record) {
  const chars = Array.from(record.passage ?? ""), at = (from, to) => chars.slice(from, to).join("");
  const headline = el("p", { class: "headline", text: record.answer || "The passage has no answer" });
  const probability = el("p", { class: "note", text: `Probability ${percent(record.probability)}` });
  const passage = el("p", { class: "passage" });
  if (record.answer) {
    passage.append(at(0, record.start), el("mark", { text: at(record.start, record.end) }), at(record.end));
  } else passage.textContent = record.passage ?? "";
  return {
    element: el("div", {}, headline, probability, passage),
    units: [{ text: record.answer ?? "", elements: [headline] }],
    summary: record.answer || "no answer",
    view: "attribution",
  };
}

// ---- masks

function masks(record) {
  const pieces = record.text.split(/\[MASK\]|<mask>/), line = el("p", { class: "passage" }), units = [];
  const cards = record.masks.map((candidates, number) => {
    const filled = el("mark", { text: candidates[0]?.token ?? "" });
    units.push({ text: filled.textContent, elements: [filled] });
    const list = el("ul", { class: "bars", "aria-label": `Candidates for mask ${number + 1}` });
    const buttons = candidates.map(({ token, probability }, index) => {
      const button = el("button", { type: "button", class: "plain", "aria-pressed": String(index === 0), text: visible(token) });
      button.addEventListener("click", () => {
        filled.textContent = token;
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      });
      list.append(el("li", {}, button, el("span", { class: "value", text: percent(probability) }), bar(probability)));
      return button;
    });
    line.append(pieces[number], filled);
    return el("div", {}, el("h3", { class: "minor", text: `Mask ${number + 1}` }), list);
  });
  line.append(pieces.at(-1));
  const summary = record.masks.map((candidates) => candidates[0]?.token).join(", ");
  return { element: el("div", {}, line, el("div", { class: "columns" }, cards)), units, summary };
}

// ---- outputs of a search

const seconds = (value) => `${value.toFixed(2)} s`;

function times(record, player) {
  const entries = (record.words ?? []).filter((word) => typeof word === "object");
  if (!entries.length) return null;
  const items = entries.map(({ word, start, end }) => {
    const button = el("button", { type: "button", class: "word-time" }, word, el("small", { text: `${start.toFixed(2)}\u2013${seconds(end)}` }), hidden("play from here"));
    button.addEventListener("click", () => {
      if (!player) return;
      player.currentTime = start;
      player.play().catch(() => {});
    });
    return el("li", {}, button);
  });
  return el("div", {}, el("h3", { class: "minor", text: "Words and their times" }), el("ol", { class: "word-times" }, items));
}

function outputs(record, { run, player }) {
  const units = [], list = record.predictions.map((output, index) => {
    const { parts, units: found } = words(output.text);
    if (!index) units.push(...found);
    const probability = Math.exp(output.log_prob);
    const note = `score ${fixed(output.score)} \u00b7 probability ${percent(probability)} \u00b7 ${count(output.tokens, "token")}${output.truncated ? " \u00b7 cut at the limit" : ""}`;
    const text = el("p", { class: index ? "output" : "output headline" }, parts.length ? parts : el("em", { text: "empty" }));
    return el("li", {}, text, bar(probability), el("p", { class: "note", text: note }));
  });
  const corrupted = record.corrupted ? facts([["Corrupted", record.corrupted], ["Target", record.target]]) : null;
  const element = el("div", {}, corrupted, el("ol", { class: list.length > 1 ? "n-best" : "n-best single" }, list), times(record, player));
  const view = ["attention", "alignment"].find((name) => run.views.includes(name)) ?? null;
  const viewOptions = run.input === "text" ? { attention: { component: "cross" } } : {}; // the alignment
  return { element, units, summary: record.predictions[0]?.text ?? "no output", view, viewOptions };
}

function reward(record) {
  const element = el("p", { class: "headline", text: fixed(record.reward) });
  const note = el("p", { class: "note", text: "The larger of two rewards is preferred. A reward alone means nothing: compare texts or answers to one prompt." });
  return { element: el("div", {}, element, note), units: [{ text: fixed(record.reward), elements: [element] }], summary: `reward ${fixed(record.reward)}`, view: "attribution" };
}

// ---- other records

const isNeighbors = (value) => Array.isArray(value) && value.length > 0 && value.every((item) => item && typeof item === "object" && Object.values(item).some((each) => typeof each === "number"));

function neighbors(items) {
  return el("ol", { class: "bars" }, items.map((item) => {
    const values = Object.values(item), name = values.find((value) => typeof value === "string") ?? "";
    const number = values.find((value) => typeof value === "number");
    return el("li", {}, el("span", { class: "name", text: name }), el("span", { class: "value", text: fixed(number) }), bar(Math.max(0, Math.min(1, number))));
  }));
}

function nearest(record) {
  const units = record.neighbors.map((item) => ({ text: Object.values(item).find((value) => typeof value === "string") ?? "", elements: [] }));
  const list = neighbors(record.neighbors);
  [...list.children].forEach((row, index) => units[index].elements.push(row));
  const element = el("div", {}, el("p", { class: "note", text: `Nearest to \u201c${record.text}\u201d, by cosine similarity` }), list);
  return { element, units, summary: units.slice(0, 3).map((unit) => unit.text).join(", ") };
}

/** Any other record: terms and values. */
function other(record) {
  const show = (value) => (isNeighbors(value) ? neighbors(value) : typeof value === "string" ? value : typeof value === "number" ? fixed(value) : el("code", { text: JSON.stringify(value) }));
  const content = Array.isArray(record) ? (isNeighbors(record) ? neighbors(record) : show(record)) : facts(Object.entries(record).map(([name, value]) => [name, show(value)]));
  return { element: el("div", {}, content), units: [{ text: JSON.stringify(record), elements: [] }], summary: "done" };
}

const RENDERERS = [["probabilities", labels], ["tags", tags], ["answer", answer], ["masks", masks], ["predictions", outputs], ["reward", reward], ["neighbors", nearest]];

export function recordView(record, context) {
  const [, render] = RENDERERS.find(([name]) => record !== null && name in Object(record)) ?? ["", other];
  return render(record, context);
}
