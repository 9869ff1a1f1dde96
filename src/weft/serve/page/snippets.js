// A request as a command for the shell and as Python, to copy.
import { hasKey } from "./api.js";
import { copyButton, el, newId } from "./dom.js";

/** The content of a file in a request. In snippets it is read from the file, by name. */
export class FileContent {
  constructor(name, base64) {
    this.name = name;
    this.base64 = base64;
  }
  toJSON() {
    return { base64: this.base64, name: this.name };
  }
}

const MARK = "\u0000";

function findFile(value) {
  if (value instanceof FileContent) return value;
  if (value === null || typeof value !== "object") return null;
  return Object.values(value).map(findFile).find(Boolean) ?? null;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(path, body) {
  const file = findFile(body), head = [`curl ${quoted(location.origin + path)}`, "-H 'Content-Type: application/json'"];
  if (hasKey()) head.push('-H "Authorization: Bearer $WEFT_KEY"');
  const withMark = (key, value) => (value instanceof FileContent || (value && value.base64) ? { base64: MARK, name: value.name } : value);
  const [before, after] = JSON.stringify(body, withMark).split("\\u0000");
  if (!file) return [...head, `-d ${quoted(before)}`].join(" \\\n  ");
  // the shell puts the content of the file between the two parts
  const content = `"$(base64 < ${quoted(file.name)} | tr -d '\\n')"`;
  const parts = `printf '%s' ${quoted(before)}${content}${quoted(after)}`;
  return `${parts} |\n  ${[...head, "-d @-"].join(" \\\n  ")}`;
}

function asLiteral(value, indent) {
  if (value instanceof FileContent) {
    const name = asLiteral(value.name, indent);
    return `{"base64": base64.b64encode(Path(${name}).read_bytes()).decode(), "name": ${name}}`;
  }
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = indent + "    ";
  const items = Array.isArray(value)
    ? value.map((item) => asLiteral(item, inner))
    : Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${asLiteral(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}", line = `${open}${items.join(", ")}${close}`;
  if (line.length + indent.length < 88 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

export function asPython(path, body) {
  const [first, last] = findFile(body) ? [["import base64"], ["from pathlib import Path"]] : [[], []];
  const imports = [...first, ...(hasKey() ? ["import os"] : []), ...last];
  const lines = [...imports, ...(imports.length ? [""] : []), "import httpx", "", `body = ${asLiteral(body, "")}`];
  const headers = hasKey() ? ', headers={"Authorization": f"Bearer {os.environ[\'WEFT_KEY\']}"}' : "";
  lines.push(`response = httpx.post(${JSON.stringify(location.origin + path)}, json=body${headers}, timeout=60)`);
  return [...lines, "response.raise_for_status()", "print(response.json())"].join("\n");
}

/** The request that made a result, folded. */
export function requestView(path, body) {
  const plain = "stream" in body ? { ...body, stream: false } : body;
  const texts = { curl: asCurl(path, plain), Python: asPython(path, plain) };
  const name = newId("language"), code = el("code"), pre = el("pre", { tabindex: "0", "aria-label": "Request" }, code);
  const choice = el("fieldset", { class: "choice" }, el("legend", { text: "Language" }));
  for (const [index, language] of Object.keys(texts).entries()) {
    const input = el("input", { type: "radio", name, value: language, checked: index === 0 });
    input.addEventListener("change", () => { code.textContent = texts[language]; });
    choice.append(el("label", {}, input, language));
  }
  code.textContent = texts.curl;
  const bar = el("div", { class: "bar" }, choice, copyButton(() => code.textContent));
  return el("details", { class: "request" }, el("summary", { text: "Request" }), bar, pre);
}
