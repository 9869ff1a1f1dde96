// A form with its results: one column per run.
import { compareResults } from "./compare.js";
import { copyButton, el } from "./dom.js";
import { errorCard } from "./errors.js";
import { Form } from "./form.js";
import { modesOf } from "./modes.js";

const hasSameForm = (run, mode) => (other) =>
  other.name !== run.name && (mode.id !== "predict" || other.task === run.task) && other.input === run.input && other.inputs.join() === run.inputs.join() && modesOf(other).some((each) => each.id === mode.id);

export class Panel {
  /** `runs`: all that are served; `navigate` gets the address of a result. */
  constructor({ run, mode, runs, limits, navigate }) {
    Object.assign(this, { run, mode, runs, limits, navigate });
    this.memories = new Map();
    const others = runs.filter(hasSameForm(run, mode));
    const compare = { name: "compare", label: "Compare with", type: "select", value: "", isOption: true, choices: [["", "no other run"], ...others.map((each) => [each.name, each.name])] };
    this.form = new Form([...mode.fields(run, limits), ...(others.length ? [compare] : [])]);
    this.submit = el("button", { type: "submit", class: "primary", text: mode.verb });
    this.stop = el("button", { type: "button", text: "Stop", disabled: true, on: { click: () => this.abort?.abort() } });
    this.status = el("p", { class: "status", role: "status" });
    this.results = el("div", { class: "results", role: "region", "aria-label": "Results" });
    this.element = el("div", { class: "panel" }, this.formElement(), this.status, this.results);
  }

  formElement() {
    const actions = el("div", { class: "actions" }, this.submit, this.stop, el("span", { class: "note keys", text: "Ctrl + Enter" }));
    if (this.mode.canRepeat) {
      const next = () => { this.form.controls.get("seed").value = Number(this.form.controls.get("seed").value || 0) + 1; this.start(); };
      actions.insertBefore(el("button", { type: "button", text: "Another", title: "The same with the next seed", on: { click: next } }), this.stop);
    }
    if (this.mode.keeps) {
      const clear = () => { this.memories.clear(); this.results.replaceChildren(); this.status.textContent = "New conversation."; };
      actions.insertBefore(el("button", { type: "button", text: "New conversation", on: { click: clear } }), this.stop);
    }
    const form = el("form", { class: "card", novalidate: true, "aria-label": this.mode.label }, this.form.inputs, this.form.options, actions);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.start(); }
    });
    return form;
  }

  fill(values) {
    this.form.fill(values);
  }

  link() {
    return { run: this.run.name, mode: this.mode.id, ...this.form.link() };
  }

  /** Once more, with other values: an alternative was chosen. */
  again(values) {
    for (const [name, value] of Object.entries(values)) this.form.controls.get(name).value = value;
    this.start();
    this.submit.focus();
  }

  async start() {
    this.abort?.abort();
    const abort = (this.abort = new AbortController()), began = performance.now();
    let values;
    try {
      values = await this.form.read();
    } catch (error) {
      this.results.replaceChildren(errorCard(error));
      return;
    }
    this.navigate(this.link());
    const other = this.runs.find((each) => each.name === values.compare);
    const runs = [this.run, ...(other ? [other] : [])];
    this.setBusy(true);
    this.results.className = `results ${other ? "two" : ""}`;
    if (!this.mode.keeps || this.results.childElementCount !== runs.length) this.results.replaceChildren();
    const outcomes = await Promise.all(runs.map((run, index) => this.show(run, values, abort.signal, index)));
    if (abort !== this.abort) return; // a newer request took over
    this.setBusy(false);
    this.report(outcomes, (performance.now() - began) / 1000, abort.signal.aborted);
    if (this.mode.clears && outcomes.every(Boolean)) this.form.controls.get(this.mode.clears).value = "";
  }

  setBusy(isBusy) {
    this.stop.disabled = !isBusy;
    this.results.setAttribute("aria-busy", String(isBusy));
    if (isBusy) this.status.textContent = "Working\u2026";
  }

  report(outcomes, seconds, wasStopped) {
    const verdict = outcomes.length === 2 && outcomes.every(Boolean) && outcomes.every((each) => each.units.length)
      ? ` ${compareResults(outcomes[0], outcomes[1])}` : "";
    const done = wasStopped ? "Stopped" : outcomes.every(Boolean) ? "Done" : "Failed";
    this.status.replaceChildren(`${done} after ${seconds.toFixed(seconds < 10 ? 2 : 0)} s.${verdict}`);
    const summary = outcomes.filter(Boolean).map((outcome) => outcome.summary).filter(Boolean).join(". ");
    this.status.append(el("span", { class: "visually-hidden", text: ` ${summary.slice(0, 600)}` }));
    const address = location.href;
    const hasFile = this.form.fields.some((field) => field.type === "file");
    if (!hasFile && !this.mode.keeps) {
      const link = el("a", { href: address, class: "again", text: "Same again" });
      link.addEventListener("click", (event) => { event.preventDefault(); this.start(); });
      this.status.append(" ", link, " ", copyButton(() => address, "Copy link"));
    }
  }

  /** One column. Returns what was shown; null after an error. */
  async show(run, values, signal, index) {
    let column = this.results.children[index];
    if (!column) {
      column = el("article", { class: "card result", "aria-label": run.name }, el("h2", { text: run.name }));
      this.results.append(column);
    }
    if (!this.memories.has(run.name)) this.memories.set(run.name, {});
    const player = [...this.form.controls.values()].map((control) => control.player).find(Boolean) ?? null;
    const context = { column, signal, limits: this.limits, memory: this.memories.get(run.name), player, again: (next) => this.again(next) };
    try {
      return await this.mode.run(run, values, context);
    } catch (error) {
      column.append(errorCard(error));
      return error.name === "AbortError" ? { units: [], summary: "" } : null;
    }
  }
}
