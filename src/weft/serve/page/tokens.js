// Generated text, token by token: shaded by probability, with the alternatives of each token in a box below it.
import { el, fixed, hidden, percent, roving, setVars, visible } from "./dom.js";

// from the most to the least probable; the line below a token repeats what its shade says
const LEVELS = [[0.5, "likely", "over 50%"], [0.1, "medium", "10 to 50%"], [0.01, "unlikely", "1 to 10%"], [0, "rare", "below 1%"]];

export const levelOf = (probability) => LEVELS.find(([least]) => probability >= least)[1];

export function tokenLegend() {
  const items = LEVELS.map(([, name, text]) => el("li", {}, el("span", { class: `token ${name}`, text: "text" }), ` ${text}`));
  return el("ul", { class: "legend", "aria-label": "Probability of a token" }, items);
}

const isBroken = (text) => text.includes("\ufffd"); // part of a character

/** The box with the probability of a token and its alternatives. One is open at a time. */
class Alternatives {
  constructor(container, choose) {
    this.container = container;
    this.choose = choose;
    this.box = el("div", { class: "alternatives", role: "group", hidden: true });
    container.append(this.box);
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close(true);
    });
    roving(this.box, () => [...this.box.querySelectorAll("button")], { vertical: true });
    container.addEventListener("mouseleave", () => {
      if (!container.contains(document.activeElement)) this.close();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !container.contains(document.activeElement)) this.close();
    });
    addEventListener("resize", () => {
      if (this.token) this.place(this.token.element);
    });
    container.addEventListener("focusout", (event) => {
      if (!container.contains(event.relatedTarget)) this.close();
    });
  }

  open(token) {
    if (this.token === token) return;
    this.close();
    const { log_prob: logProb, text } = token.record, probability = Math.exp(logProb);
    const heading = el("p", {}, el("code", { text: visible(text) }), ` ${percent(probability)}`);
    const surprise = el("small", { text: `${fixed(-logProb / Math.LN2, 1)} bits` });
    heading.append(" ", surprise);
    this.box.replaceChildren(heading, this.list(token));
    this.box.setAttribute("aria-label", `Alternatives to ${visible(text)}`);
    this.box.hidden = false;
    this.token = token;
    token.element.classList.add("open");
    this.place(token.element);
  }

  list(token) {
    const list = el("ul");
    for (const { text, log_prob: logProb } of token.record.top ?? []) {
      const isChosen = text === token.record.text, probability = Math.exp(logProb);
      const bar = setVars(el("span", { class: "level", "aria-hidden": "true" }), { value: probability });
      const before = token.before();
      const canChoose = this.choose && !isBroken(before + text) && !/^<\/?s>$/.test(text);
      const note = hidden(isChosen ? " chosen" : canChoose ? " continue with it" : "");
      const content = [el("code", { text: visible(text) }), el("span", { text: percent(probability) }), bar, note];
      const button = el("button", { type: "button", tabindex: "-1", class: isChosen ? "chosen" : null }, content);
      if (canChoose && !isChosen) button.addEventListener("click", () => this.choose(before + text));
      else button.setAttribute("aria-disabled", "true");
      list.append(el("li", {}, button));
    }
    return list;
  }

  place(element) {
    const outer = this.container.getBoundingClientRect(), inner = element.getClientRects()[0];
    setVars(this.box, { left: `${inner.left - outer.left}px`, top: `${inner.bottom - outer.top}px` });
  }

  enter() {
    const buttons = [...this.box.querySelectorAll("button")];
    (buttons.find((button) => !button.hasAttribute("aria-disabled")) ?? buttons[0])?.focus();
  }

  close(returnFocus = false) {
    if (!this.token) return;
    const { element } = this.token;
    element.classList.remove("open");
    this.box.hidden = true;
    this.token = null;
    if (returnFocus) {
      this.isReturning = true;
      element.focus();
      this.isReturning = false;
    }
  }
}

/** A text that grows by tokens. `choose` is called with the text until an alternative, including it. */
export class TokenText {
  constructor({ prompt = "", choose = null, label = "Text" } = {}) {
    this.tokens = [];
    this.line = el("p", { class: "tokens", role: "group", "aria-label": label });
    if (prompt) this.line.append(el("span", { class: "prompt", text: prompt }));
    this.element = el("div", { class: "token-text" }, this.line);
    this.alternatives = new Alternatives(this.element, choose);
    roving(this.line, () => this.tokens.map((token) => token.element));
  }

  get text() {
    return this.tokens.map((token) => token.record.text).join("");
  }

  append(records) {
    for (const record of records) this.add(record);
  }

  add(record) {
    const index = this.tokens.length, isKnown = record.log_prob !== null && record.log_prob !== undefined;
    const probability = isKnown ? Math.exp(record.log_prob) : null;
    const isEnd = /^<\/?s>$/.test(record.text);
    const text = isEnd ? "\u25a0" : record.text.replaceAll("\n", "\u23ce\n"); // something to point at
    const name = isEnd ? "end of the text" : visible(record.text);
    const element = el("span", { role: "button", tabindex: index ? "-1" : "0", "aria-label": isKnown ? `${name}, ${percent(probability)}` : name, text });
    element.className = `token ${isKnown ? levelOf(probability) : ""}`;
    const before = () => this.tokens.slice(0, index).map((token) => token.record.text).join("");
    const token = { record, element, before };
    this.tokens.push(token);
    this.line.append(element);
    if (!isKnown) return;
    const open = () => {
      if (!this.alternatives.isReturning) this.alternatives.open(token);
    };
    element.addEventListener("mouseenter", open);
    element.addEventListener("focus", open);
    element.addEventListener("click", open);
    element.addEventListener("keydown", (event) => {
      if (["Enter", " ", "ArrowDown"].includes(event.key)) {
        event.preventDefault();
        this.alternatives.open(token);
        this.alternatives.enter();
      } else if (event.key === "Escape") this.alternatives.close();
    });
  }
}
