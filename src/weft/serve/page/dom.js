// Elements, numbers and small controls. Text from outside becomes a text node, never markup.

/** An element. Properties: `class`, `text`, `on` (listeners), and attributes; null and false leave an attribute out. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

let lastId = 0;
export const newId = (prefix = "id") => `${prefix}-${++lastId}`;

/** Set custom properties; the policy of the page allows this, but no style attributes. */
export function setVars(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(`--${name}`, value);
  return element;
}

export const hidden = (text) => el("span", { class: "visually-hidden", text });

/** A probability with as many digits as it needs. */
export function percent(probability) {
  if (probability === null || probability === undefined) return "";
  const value = 100 * probability;
  if (value > 0 && value < 0.01) return "<0.01%";
  if (value < 100 && value > 99.99) return ">99.99%";
  return `${value.toFixed(value < 1 || (value > 99 && value < 100) ? 2 : value < 10 ? 1 : 0)}%`;
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export const fixed = (value, digits = 3) => (value === null || value === undefined ? "" : value.toFixed(digits).replace("-", "\u2212"));

/** A token with its spaces and line ends visible. */
export function visible(token) {
  if (token === "") return "\u03b5";
  return token.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5").replaceAll(" ", "\u2423");
}

export function copyButton(getText, label = "Copy") {
  const button = el("button", { type: "button", class: "small", text: label });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(getText());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

/** A list of terms and values; values may be elements. */
export function facts(entries) {
  const list = el("dl", { class: "facts" });
  for (const [term, value] of entries) list.append(el("div", {}, el("dt", { text: term }), el("dd", {}, value)));
  return list;
}

/** Let the arrow keys move the focus among elements, which are one stop of the Tab key. */
export function roving(container, getItems, { vertical = false } = {}) {
  const keys = { ArrowRight: 1, ArrowLeft: -1, ...(vertical ? { ArrowDown: 1, ArrowUp: -1 } : {}) };
  container.addEventListener("keydown", (event) => {
    const items = getItems(), index = items.indexOf(document.activeElement);
    if (index < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const edges = { Home: 0, End: items.length - 1 };
    const next = event.key in keys ? index + keys[event.key] : edges[event.key];
    if (next === undefined) return;
    event.preventDefault();
    items[Math.min(items.length - 1, Math.max(0, next))].focus();
  });
  container.addEventListener("focusin", (event) => {
    const items = getItems();
    if (!items.includes(event.target)) return;
    for (const item of items) item.tabIndex = item === event.target ? 0 : -1;
  });
}
