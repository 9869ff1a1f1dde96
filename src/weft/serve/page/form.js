// Forms from lists of fields, and their values: from the form, from a link, and as a link.
import { count, el, newId } from "./dom.js";
import { FileContent } from "./snippets.js";

/** A field: {name, label, type, value, min, max, step, placeholder, isOption, accept}. */
function control(field, id) {
  if (field.type === "text") {
    return el("textarea", { id, rows: field.rows ?? 3, placeholder: field.placeholder, spellcheck: "false", autocapitalize: "off" });
  }
  if (field.type === "select") {
    return el("select", { id }, field.choices.map(([value, text]) => el("option", { value, text })));
  }
  const { min, max, step, placeholder } = field;
  return el("input", { id, type: "number", inputmode: "decimal", min, max, step: step ?? 1, placeholder });
}

const problem = (where, what, fix) => Object.assign(new Error(what), { where, problem: what, fix });

const readFile = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

function preview(file, kind) {
  const url = URL.createObjectURL(file);
  if (kind === "audio") return el("audio", { src: url, controls: true, "aria-label": file.name });
  if (kind === "image") return el("img", { src: url, alt: file.name });
  return null;
}

/** A place to choose a file or to drop one. */
class FileControl {
  constructor(field, id) {
    this.field = field;
    this.input = el("input", { id, type: "file", accept: field.accept, class: "file" });
    this.name = el("span", { class: "file-name", text: "no file yet" });
    this.shown = el("div", { class: "preview" });
    const text = el("span", {}, el("strong", { text: "Choose a file" }), " or drop one here: ", this.name);
    this.element = el("div", { class: "drop" }, el("label", { for: id }, text), this.input, this.shown);
    this.input.addEventListener("change", () => this.set(this.input.files[0]));
    for (const event of ["dragenter", "dragover"]) this.element.addEventListener(event, (each) => this.drag(each, true));
    this.element.addEventListener("dragleave", (event) => this.drag(event, false));
    this.element.addEventListener("drop", (event) => {
      this.drag(event, false);
      this.set(event.dataTransfer.files[0]);
    });
  }

  drag(event, isOver) {
    event.preventDefault();
    this.element.classList.toggle("over", isOver);
  }

  set(file) {
    if (!file) return;
    this.file = file;
    this.name.textContent = `${file.name}, ${count(Math.ceil(file.size / 1024), "kB").replace("kBs", "kB")}`;
    this.shown.replaceChildren(...[preview(file, this.field.kind)].filter(Boolean));
  }

  async read() {
    if (!this.file) throw problem("file", "there is none yet", "choose one");
    if (this.field.maxBytes && this.file.size > this.field.maxBytes) {
      throw problem("file", `larger than ${Math.floor(this.field.maxBytes / 1024)} kB`, "use a smaller one, or raise the limit of the server");
    }
    return new FileContent(this.file.name, await readFile(this.file));
  }

  /** The player of a recording; null for other files. */
  get player() {
    return this.shown.querySelector("audio");
  }
}

export class Form {
  constructor(fields) {
    this.fields = fields;
    this.controls = new Map();
    this.inputs = el("div", { class: "inputs" });
    this.options = el("div", { class: "options" });
    for (const field of fields) this.add(field);
    this.reset();
  }

  add(field) {
    const id = newId("field");
    if (field.type === "file") {
      const made = new FileControl(field, id);
      this.controls.set(field.name, made);
      this.inputs.append(el("div", { class: "field wide" }, el("span", { class: "label", text: field.label }), made.element));
      made.input.setAttribute("aria-label", field.label);
      return;
    }
    const made = control(field, id), isWide = field.type === "text";
    this.controls.set(field.name, made);
    const box = el("div", { class: `field ${isWide ? "wide" : field.type === "select" ? "choosing" : ""}` }, el("label", { for: id, text: field.label }), made);
    (field.isOption ? this.options : this.inputs).append(box);
  }

  reset() {
    for (const field of this.fields) if (field.type !== "file") this.controls.get(field.name).value = field.value ?? "";
  }

  /** Fill in the values of a link; others have their defaults. */
  fill(values) {
    this.reset();
    for (const field of this.fields) {
      if (field.type !== "file" && field.name in values) this.controls.get(field.name).value = values[field.name];
    }
  }

  /** Values by name: texts, numbers (null if empty), contents of files. */
  async read() {
    const values = {};
    for (const { name, label, type, isRequired } of this.fields) {
      const made = this.controls.get(name);
      if (isRequired && !made.value.trim()) throw problem(label.toLowerCase(), "is empty", "write something");
      if (type === "file") values[name] = await made.read();
      else if (type === "text" || type === "select") values[name] = made.value;
      else values[name] = made.value === "" ? null : Number(made.value);
    }
    return values;
  }

  /** What a link needs to fill the form again: values that are not the default. */
  link() {
    const values = {};
    for (const { name, type, value } of this.fields) {
      const now = type === "file" ? "" : this.controls.get(name).value;
      if (type !== "file" && now !== String(value ?? "")) values[name] = now;
    }
    return values;
  }
}

/** Names with their values, for options of a request; without those that are empty. */
export function chosen(values, names) {
  return Object.fromEntries(names.filter((name) => values[name] !== null && values[name] !== undefined).map((name) => [name, values[name]]));
}
