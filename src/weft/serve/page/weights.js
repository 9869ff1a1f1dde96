// Weights of inputs for outputs: point at an output token, and the input tokens are shaded.
import { el, fixed, percent, roving, setVars, visible } from "./dom.js";

const isSpecial = (token) => token.end <= token.start;

function tokenLine(tokens, make) {
  const line = el("p", { class: "tokens" }), spans = [];
  const isText = !tokens.every(isSpecial); // otherwise terms, or tokens without a place in the text
  let end = 0;
  for (const [index, token] of tokens.entries()) {
    const isNext = isText && (isSpecial(token) ? token.start < end : token.start > end);
    if (spans.length && (isNext || !isText)) line.append(" ");
    const span = make(token, index);
    if (isText && isSpecial(token)) span.classList.add("special");
    if (!isSpecial(token)) end = token.end;
    spans.push(span);
    line.append(span, el("wbr"));
  }
  return { line, spans };
}

/** Shade the tokens of a side by weight. Signs have their own colors and their own lines below the text. */
function shade(spans, values, scale, isSigned) {
  for (const [index, span] of spans.entries()) {
    const value = values[index] ?? 0, size = scale ? Math.min(1, Math.abs(value) / scale) : 0;
    span.classList.toggle("negative", isSigned && value < 0);
    span.classList.toggle("strong", size > 0.5);
    setVars(span, { weight: (isSigned ? size : Math.sqrt(size)).toFixed(3) });
    span.title = isSigned ? fixed(value) : percent(value);
  }
}

const largest = (values) => values.reduce((best, value) => Math.max(best, Math.abs(value)), 0);

/** In words: the tokens with the largest weights. */
function summary(sides, row, isSigned) {
  const entries = sides.flatMap((side) => side.tokens.map((token, index) => [token.text, side.values[row][index] ?? 0]));
  entries.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const best = entries.slice(0, 3).filter(([, value]) => value !== 0);
  if (!best.length) return "no token matters";
  return best.map(([text, value]) => `${visible(text)} ${isSigned ? (value > 0 ? "+" : "") + fixed(value, 2) : percent(value)}`).join(", ");
}

/**
 * `outputs`: tokens or names; `sides`: {name, tokens, values[output][token]}. With one output there is nothing to choose.
 * `first` is shown at once. Returns the element.
 */
export function weightsView({ outputs, sides, isSigned, verb, first = 0 }) {
  const status = el("p", { class: "status", role: "status" });
  const shown = sides.map((side) => ({ side, ...tokenLine(side.tokens, (token) => el("span", { class: `weight ${isSigned ? "signed" : ""}`, text: isSpecial(token) ? visible(token.text) : token.text })) }));
  let buttons = [];
  const select = (row) => {
    for (const { side, spans } of shown) {
      shade(spans, side.values[row], isSigned ? largest(sides.flatMap((each) => each.values[row])) : 1, isSigned);
    }
    for (const [index, button] of buttons.entries()) button.setAttribute("aria-pressed", String(index === row));
    const name = outputs[row].name ?? outputs[row].text;
    status.textContent = `${visible(name)} ${verb}: ${summary(sides, row, isSigned)}`;
  };
  const element = el("div", { class: "weights" });
  if (outputs.length > 1) {
    const made = tokenLine(outputs, (token, index) => {
      const text = token.name ?? (isSpecial(token) || !token.text.trim() ? visible(token.text) : token.text);
      const button = el("button", { type: "button", class: "output-token", tabindex: index === first ? "0" : "-1", text });
      for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, () => select(index));
      return button;
    });
    buttons = made.spans;
    made.line.setAttribute("role", "group");
    made.line.setAttribute("aria-label", "Output tokens");
    roving(made.line, () => buttons);
    element.append(el("h4", { text: "Output: point at a token, or use the arrow keys" }), made.line);
  }
  for (const { side, line } of shown) element.append(el("h4", { text: side.name[0].toUpperCase() + side.name.slice(1) }), line);
  const scale = isSigned ? ["for", "against"] : ["more weight"];
  const legend = el("ul", { class: "legend", "aria-label": "Shades" }, scale.map((text, index) =>
    el("li", {}, setVars(el("span", { class: `weight strong ${isSigned ? "signed" : ""} ${index ? "negative" : ""}`, text: "text" }), { weight: 0.8 }), ` ${text}`)));
  element.append(status, legend);
  select(first);
  return element;
}

const mean = (matrices) => matrices[0].map((row, r) => row.map((_, c) => matrices.reduce((sum, matrix) => sum + matrix[r][c], 0) / matrices.length));

/** Attention of an explanation: the mean of all layers and heads of a component, or one head. */
export function attentionView(layers, sideName) {
  const first = sideName === "text" ? layers[0].rows.length - 1 : 0; // the last token of a text has seen the others
  const box = el("div"), id = `heads-${Math.random().toString(36).slice(2)}`, select = el("select", { id });
  const choices = [["mean of all layers and heads", layers.flatMap((layer) => layer.weights)]];
  for (const layer of layers) {
    layer.heads.forEach((head, index) => choices.push([`layer ${layer.layer}, head ${head}`, [layer.weights[index]]]));
  }
  choices.forEach(([name], index) => select.append(el("option", { value: index, text: name })));
  const draw = () => {
    const side = { name: sideName, tokens: layers[0].columns, values: mean(choices[Number(select.value)][1]) };
    box.replaceChildren(weightsView({ outputs: layers[0].rows, sides: [side], isSigned: false, verb: "attends to", first }));
  };
  select.addEventListener("change", draw);
  draw();
  return el("div", {}, el("p", { class: "bar" }, el("label", { for: id, text: "Attention" }), select), box);
}
