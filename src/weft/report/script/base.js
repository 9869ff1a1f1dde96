// Shared by all parts: the data, DOM helpers, number formats, and the color and shape of each row.

const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows;
const higherIsBetter = data.metric.better === "higher";

const SVG = "http://www.w3.org/2000/svg";
const MISSING = "–";
const COLORS = 8;
// seven shapes, five dash patterns and eight colors: the first forty rows differ even without color
const SHAPES = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
  "M-3.6 -3.6h7.2v7.2h-7.2z",
  "M0 -4.8L4.6 3.6H-4.6z",
  "M0 -5L5 0L0 5L-5 0z",
  "M-1.4 -4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",
  "M-4.4 -2.4L-2.4 -4.4L0 -2L2.4 -4.4L4.4 -2.4L2 0L4.4 2.4L2.4 4.4L0 2L-2.4 4.4L-4.4 2.4L-2 0z",
  "M0 4.8L4.6 -3.6H-4.6z",
];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2"];

// Sets attributes and event handlers and appends children. Strings become text nodes: data is never parsed as markup.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// Create an HTML element (h) or an SVG element (s).
const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const color = (row) => `c${row % COLORS}`;
const dash = (row) => DASHES[row % DASHES.length];
const shape = (row) => SHAPES[row % SHAPES.length];
const point = (row, x, y, size = 1) => {
  const transform = `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})`;
  return s("path", { class: `point ${color(row)}`, d: shape(row), transform });
};
const nameOf = (row) => h("bdi", {}, rows[row].name);
const sign = (row) =>
  s("svg", { class: `sign ${color(row)}`, viewBox: "-6 -6 12 12", "aria-hidden": "true" }, s("path", { d: shape(row) }));

// null is a missing value; infinity is a string, since JSON has none
const number = (value) => (value === null || value === undefined ? NaN : Number(value));
const isFiniteNumber = (value) => Number.isFinite(number(value));

function fixed(value, decimals) {
  const numeric = number(value);
  if (Number.isNaN(numeric)) return MISSING;
  if (!Number.isFinite(numeric)) return numeric > 0 ? "∞" : "−∞";
  const options = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return numeric.toLocaleString("en-US", options).replace("-", "−");
}

function digits(value, count = 3) {
  const numeric = number(value);
  if (!Number.isFinite(numeric) || numeric === 0) return fixed(numeric, 0);
  return fixed(numeric, Math.min(6, Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(numeric))))));
}

function short(value) {
  let numeric = number(value);
  if (!Number.isFinite(numeric)) return fixed(numeric, 0);
  for (const unit of ["", "k", "M", "B"]) {
    if (Math.abs(numeric) < 999.5) return String(Number(numeric.toPrecision(3))) + unit;
    numeric /= 1000;
  }
  return `${Number(numeric.toPrecision(3))}T`;
}

function size(value) {
  let numeric = number(value);
  if (!Number.isFinite(numeric)) return MISSING;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(numeric) < 999.5) return `${Number(numeric.toPrecision(3))} ${unit}`;
    numeric /= 1000;
  }
  return `${Number(numeric.toPrecision(3))} TB`;
}

function duration(value) {
  const numeric = number(value);
  if (!Number.isFinite(numeric)) return MISSING;
  if (numeric < 59.95) return `${Number(numeric.toPrecision(3))}s`;
  const rounded = Math.round(numeric);
  if (rounded < 3600) return `${Math.floor(rounded / 60)}m${rounded % 60 ? `${String(rounded % 60).padStart(2, "0")}s` : ""}`;
  return `${Math.floor(rounded / 3600)}h${String(Math.floor(rounded / 60) % 60).padStart(2, "0")}m`;
}

// A group of radio buttons, so that arrow keys and screen readers work.
let numGroups = 0;
function radioGroup(title, options, selected, onChange) {
  const name = `group${numGroups++}`;
  const input = (value) =>
    h("input", { type: "radio", name, value, checked: value === selected, onchange: () => onChange(value) });
  const labels = Object.entries(options).map(([value, text]) => h("label", {}, input(value), text));
  return h("fieldset", {}, h("legend", {}, title), h("span", { class: "radio-group" }, labels));
}

function select(title, options, selected, onChange) {
  const list = h("select", { onchange: (event) => onChange(event.target.value) },
    Object.entries(options).map(([value, text]) => h("option", { value, selected: value === String(selected) }, text)));
  return h("label", {}, `${title} `, list);
}
