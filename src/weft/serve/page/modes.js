// What can be done with a run. A mode has fields for the form, and `run`, which sends the request and shows the result in a
// column. It returns what is compared between runs (`units`) and what is announced (`summary`).
import { post, runPath, stream } from "./api.js";
import { tokenWords } from "./compare.js";
import { count, el, facts, fixed, percent } from "./dom.js";
import { errorCard } from "./errors.js";
import { explanations } from "./explain.js";
import { chosen } from "./form.js";
import { ACCEPT, hintOf } from "./hints.js";
import { bar, recordView } from "./records.js";
import { requestView } from "./snippets.js";
import { levelOf, tokenLegend, TokenText } from "./tokens.js";

const NUM_TOP = 10, MAX_CHARS_EXPLAINED_AT_ONCE = 400;
const title = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
const option = (name, label, value, more = {}) => ({ name, label, type: "number", value, isOption: true, ...more });

const SAMPLING = ["max_new_tokens", "temperature", "top_p", "seed"];

function samplingFields(limits) {
  return [
    option("max_new_tokens", "Maximum tokens", 80, { min: 1, max: limits.max_new_tokens }),
    option("temperature", "Temperature", "", { min: 0, max: 10, step: "any", placeholder: "1" }),
    option("top_p", "Top p", "", { min: 0.01, max: 1, step: "any", placeholder: "1" }),
    option("seed", "Seed", 0, { min: 0 }),
  ];
}

const REASONS = { eos: "the end of the text", stop: "a stop string", length: "the maximum of tokens", stuck: "no token was left" };

/** Show a stream of tokens. Returns the reason of its end; null if it was stopped. */
async function showStream(path, body, text, signal) {
  try {
    for await (const event of stream(path, body, signal)) {
      text.append(event.tokens);
      if (event.finish_reason) return event.finish_reason;
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
  return null;
}

// ---- complete

const generate = {
  id: "generate",
  label: "Complete",
  verb: "Complete",
  canRepeat: true,
  fields: (run, limits) => [
    { name: "prompt", label: "Prompt", type: "text", placeholder: hintOf(run).placeholder ?? "", rows: 3 },
    ...samplingFields(limits),
  ],
  async run(run, values, { column, signal, limits, again }) {
    const body = {
      prompts: [values.prompt], options: chosen(values, SAMPLING), top_logprobs: Math.min(NUM_TOP, limits.max_top_logprobs), stream: true,
    };
    const path = runPath(run, "generate");
    const text = new TokenText({ prompt: values.prompt, label: "Completion", choose: (until) => again({ prompt: values.prompt + until }) });
    const note = el("p", { class: "note" });
    column.append(text.element, note, tokenLegend(), requestView(path, body));
    const reason = await showStream(path, body, text, signal);
    const logProbs = text.tokens.map((token) => token.record.log_prob), sum = logProbs.reduce((total, value) => total + value, 0);
    const perplexity = logProbs.length ? `, perplexity ${Math.exp(-sum / logProbs.length).toFixed(1)}` : "";
    note.textContent = `${count(text.tokens.length, "token")}${perplexity}. ${reason ? `Ended by ${REASONS[reason] ?? reason}.` : "Stopped."} Point at a token to see what else was likely; choose an alternative to continue from there.`;
    return { units: tokenWords(text.tokens), summary: text.text };
  },
};

// ---- chat

const chat = {
  id: "chat",
  label: "Chat",
  verb: "Send",
  keeps: true,
  fields: (run, limits) => [
    { name: "message", label: "Message", type: "text", isRequired: true, rows: 3 },
    ...samplingFields(limits),
    { name: "system", label: "System message", type: "text", rows: 1, isOption: true },
  ],
  clears: "message",
  async run(run, values, { column, signal, limits, memory }) {
    memory.messages ??= [];
    memory.messages.push({ role: "user", content: values.message });
    const system = values.system ? [{ role: "system", content: values.system }] : [];
    const body = {
      messages: [...system, ...memory.messages], options: chosen(values, SAMPLING), top_logprobs: Math.min(NUM_TOP, limits.max_top_logprobs), stream: true,
    };
    memory.log ??= el("ol", { class: "messages", "aria-label": `Conversation with ${run.name}` });
    const text = new TokenText({ label: "Reply" });
    memory.log.append(el("li", { class: "user" }, el("h3", { class: "minor", text: "You" }), el("p", { text: values.message })));
    memory.log.append(el("li", { class: "assistant" }, el("h3", { class: "minor", text: run.name }), text.element));
    column.replaceChildren(column.firstElementChild, memory.log, tokenLegend(), requestView(runPath(run, "chat"), body));
    try {
      await showStream(runPath(run, "chat"), body, text, signal);
    } catch (error) {
      memory.messages.pop(); // so that it can be sent again
      memory.log.lastElementChild.remove();
      throw error;
    }
    const content = text.tokens.map((token) => token.record.text).filter((part) => !/^<\/?s>$/.test(part)).join("");
    memory.messages.push({ role: "assistant", content });
    return { units: tokenWords(text.tokens), summary: `${run.name}: ${content}` };
  },
};

// ---- predict

function inputFields(run, limits) {
  const { placeholder } = hintOf(run), maxBytes = Math.floor((limits.max_body_bytes - 4096) * 0.75); // base64
  if (run.input in ACCEPT) return [{ name: run.inputs[0], label: title(run.input), type: "file", accept: ACCEPT[run.input], kind: run.input, maxBytes }];
  return run.inputs.map((name, index) => ({ name, label: title(name), type: "text", isRequired: true, placeholder, rows: run.inputs.length > 1 && !index ? 2 : 3 }));
}

const inputOf = (run, values) => (run.inputs.length > 1 ? run.inputs.map((name) => values[name]) : values[run.inputs[0]]);

/** Options of a search: models that predict and score are decoders. */
function searchOptions(run, limits) {
  if (!run.operations.includes("score")) return (hintOf(run).options ?? []).map(([name, label, value]) => option(name, label, value, { min: 1 }));
  return [
    option("n_best", "Outputs", 3, { min: 1, max: limits.max_outputs }),
    option("beam_size", "Beam size", 5, { min: 1, max: limits.max_beam_size }),
    option("length_penalty", "Length penalty", "", { min: 0, max: 10, step: "any", placeholder: "default" }),
    option("max_new_tokens", "Maximum tokens", "", { min: 1, max: limits.max_new_tokens, placeholder: "default" }),
  ];
}

const predict = {
  id: "predict",
  label: "Predict",
  fields: (run, limits) => [...inputFields(run, limits), ...searchOptions(run, limits)],
  async run(run, values, { column, signal, limits, player }) {
    const options = chosen(values, searchOptions(run, limits).map((field) => field.name));
    if (run.input === "audio") options.return_alignments = true;
    const input = inputOf(run, values), body = { inputs: [input], options }, path = runPath(run, "predict");
    const { predictions: [record] } = await post(path, body, signal);
    if (record.error) {
      column.append(errorCard(record.error), requestView(path, body));
      return null;
    }
    const shown = recordView(record, { run, player });
    const length = typeof input === "object" && !Array.isArray(input) ? 0 : [input].flat().join("").length;
    const first = run.views.includes(shown.view) && length <= MAX_CHARS_EXPLAINED_AT_ONCE ? shown.view : null;
    const why = explanations(run, input, { first, onView: shown.onView, options: shown.viewOptions });
    column.append(...[shown.element, requestView(path, body), why].filter(Boolean));
    return shown;
  },
};

// ---- score

function perToken(record) {
  const line = el("p", { class: "tokens" });
  for (const token of record.tokens) {
    const probability = Math.exp(-token.surprisal), text = token.token ?? token.text ?? "";
    line.append(el("span", { class: `token ${levelOf(probability)}`, title: percent(probability), text: /^<\/?s>$/.test(text) ? "\u25a0" : text }), "\u200b");
  }
  return line;
}

const score = {
  id: "score",
  label: "Score",
  verb: "Score",
  fields: (run, limits) => (run.operations.includes("predict") ? [...inputFields(run, limits), { name: "target", label: "Target", type: "text", rows: 2 }]
    : run.operations.includes("chat") ? [{ name: "prompt", label: "Prompt", type: "text", rows: 2 }, { name: "response", label: "Response", type: "text", rows: 3 }]
      : [{ name: "text", label: "Text", type: "text", isRequired: true, rows: 3 }]),
  async run(run, values, { column, signal }) {
    const input = "target" in values ? [inputOf(run, values), values.target] : "response" in values ? [values.prompt, values.response] : values.text;
    const body = { inputs: [input], per_token: true }, path = runPath(run, "score");
    const { scores: [record] } = await post(path, body, signal);
    if (record.error) {
      column.append(errorCard(record.error), requestView(path, body));
      return null;
    }
    const tokens = Array.isArray(record.tokens) ? record.tokens.length : record.tokens;
    const perplexity = tokens ? Math.exp(-record.log_prob / tokens) : null;
    const values_ = [["Log-probability", fixed(record.log_prob)], ["Tokens", String(tokens)], ["Perplexity", perplexity === null ? "" : perplexity.toFixed(2)]];
    const text = Array.isArray(record.tokens) ? [perToken(record), tokenLegend()] : [];
    column.append(...text, facts(values_), requestView(path, body));
    return { units: [{ text: fixed(record.log_prob), elements: [] }], summary: `log-probability ${fixed(record.log_prob)}` };
  },
};

// ---- similarity

const norm = (vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
const cosine = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0) / (norm(a) * norm(b) || 1);

const embed = {
  id: "embed",
  label: "Similarity",
  verb: "Compare lines",
  fields: () => [{ name: "lines", label: "Texts, one per line", type: "text", isRequired: true, rows: 6, placeholder: "Each line is compared with the first" }],
  async run(run, values, { column, signal }) {
    const texts = values.lines.split("\n").filter((line) => line.trim());
    const body = { texts }, path = runPath(run, "embed");
    const { vectors } = await post(path, body, signal);
    const note = el("p", { class: "note", role: "status" }), list = el("ol", { class: "bars", "aria-label": "Similarities, largest first" });
    /** Rank the lines by similarity to one of them. */
    const rank = (reference) => {
      const ranked = vectors.map((vector, index) => [index, cosine(vectors[reference], vector)]).filter(([index]) => index !== reference);
      ranked.sort((a, b) => b[1] - a[1]);
      note.textContent = `Cosine similarity to \u201c${texts[reference]}\u201d; vectors of ${vectors[reference].length} dimensions. Choose a line to compare the others with it.`;
      list.replaceChildren(...ranked.map(([index, value]) => {
        const choose = () => { rank(index); list.querySelector("button")?.focus(); };
        const name = el("button", { type: "button", class: "plain name", text: texts[index], on: { click: choose } });
        return el("li", {}, name, el("span", { class: "value", text: fixed(value) }), bar(Math.max(0, value)));
      }));
      return ranked;
    };
    const ranked = rank(0);
    const units = ranked.map(([index], place) => ({ text: texts[index], elements: [list.children[place].firstElementChild] }));
    column.append(note, list, requestView(path, body));
    return { units, summary: ranked.length ? `nearest: ${texts[ranked[0][0]]}` : "one text" };
  },
};

// ---- explain

const explainMode = {
  id: "explain",
  label: "Explain",
  verb: "Explain",
  fields: inputFields,
  async run(run, values, { column }) {
    column.append(explanations(run, inputOf(run, values), { first: run.views[0] }) ?? el("p", { text: "This run has no views." }));
    return { units: [], summary: "" };
  },
};

const MODES = [chat, generate, predict, embed, score, explainMode];

export function modesOf(run) {
  const verb = hintOf(run).verb ?? "Predict";
  return MODES.filter((mode) => run.operations.includes(mode.id)).map((mode) => (mode === predict ? { ...mode, label: verb, verb } : mode));
}
