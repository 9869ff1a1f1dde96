// Test items: the outputs of two models side by side, with the differences marked.

const PAGE_ITEMS = 10;
const MAX_UNFOLDED_CHARS = 160; // shorter inputs are never folded

// ---- texts with differences marked

// For each token, whether it is in the longest common subsequence of `tokens` and `other`.
function commonTokens(tokens, other) {
  const width = other.length + 1;
  const length = new Uint16Array((tokens.length + 1) * width);
  for (let i = tokens.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      const without = Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
      length[i * width + j] = tokens[i] === other[j] ? length[(i + 1) * width + j + 1] + 1 : without;
    }
  }
  const isCommon = new Array(tokens.length).fill(false);
  for (let i = 0, j = 0; i < tokens.length && j < other.length;) {
    if (tokens[i] === other[j]) [isCommon[i], i, j] = [true, i + 1, j + 1];
    else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return isCommon;
}

// A function that splits into words if there are spaces, else into characters (single words, languages without spaces).
function splitter(text, other) {
  const byWord = data.output_type !== "text" || /\s/.test(text) || /\s/.test(other);
  return (string) => (byWord ? string.split(/(\s+)/).filter((token) => token !== "") : [...string]);
}

// The text, with tokens marked that the other text lacks; adjacent tokens share a mark.
function markTokens(text, other) {
  if (other === null || other === undefined) return [text];
  const split = splitter(text, other), isWord = (token) => token.trim() !== "";
  const isCommon = commonTokens(split(text).filter(isWord), split(other).filter(isWord));
  const runs = [];
  let index = 0;
  for (const token of split(text)) {
    const last = runs[runs.length - 1];
    const same = isWord(token) ? isCommon[index++] : !last || last.same; // a space belongs to the token before it
    if (last && last.same === same) last.text += token;
    else runs.push({ same, text: token });
  }
  return runs.flatMap((run) => {
    const end = run.text.trimEnd().length;
    return run.same ? [run.text] : [h("mark", {}, run.text.slice(0, end)), run.text.slice(end)];
  });
}

// Labels are a set: those that the other lacks are marked.
function markLabels(text, other) {
  const otherLabels = new Set((other ?? text).split(", "));
  return text.split(", ").flatMap((label, i) => [i ? ", " : "", otherLabels.has(label) ? label : h("mark", {}, label)]);
}

// Tags below their words; those that differ from the other are marked.
function markTags(words, tags, other) {
  const otherTags = other === null || other === undefined ? tags : other.split(" ");
  return h("p", { class: "words" }, tags.map((tag, i) =>
    h(tag === otherTags[i] ? "span" : "mark", {}, h("span", {}, words[i], h("small", {}, tag)))));
}

function outputText(item, text, other) {
  if (text === null || text === undefined) return h("p", { class: "empty" }, "not evaluated");
  if (text === "") return h("p", { class: "empty" }, "empty");
  const words = item.input.split(" "), tags = text.split(" ");
  if (data.output_type === "tags" && words.length === tags.length) return markTags(words, tags, other);
  return h("p", { dir: "auto" }, data.output_type === "labels" ? markLabels(text, other) : markTokens(text, other));
}

// ---- ranking

// How much better x is than y; a missing value is worse than any other.
function gain(x, y, higherIsBetter) {
  if (x === y || (Number.isNaN(x) && Number.isNaN(y))) return 0;
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? -Infinity : Infinity;
  return higherIsBetter ? x - y : y - x;
}

// Items may have another metric than the comparison: BLEU is not meaningful for a single line.
const higherItemIsBetter = data.item_metric.better === "higher";

// Larger is better, whatever the direction of the metric.
function quality(value) {
  if (Number.isNaN(value)) return -Infinity;
  return higherItemIsBetter ? value : -value;
}

const bestFirst = () => [...rows.keys()].sort((a, b) =>
  rows[b].best - rows[a].best || Math.sign(gain(number(rows[b].value), number(rows[a].value), higherIsBetter)));

// ---- list of items

const ORDERS = {
  difference: "largest difference",
  first: "first model better",
  second: "second model better",
  worst: "both worst",
  best: "both best",
};

function Items(box) {
  const items = data.items;
  const hasOutputs = items.some((item) => item.outputs.some((text) => text !== null)); // language models have no outputs
  const hasReferences = items.some((item) => item.reference);
  const [a, b = a] = bestFirst();
  // labels and tags are compared with the reference; free text usually differs from it
  const markAgainst = data.output_type === "text" || !hasReferences ? "other" : "reference";
  const state = { a, b, order: "difference", against: markAgainst, filter: "", count: PAGE_ITEMS };
  const list = h("div"), counts = h("p", { class: "tally", role: "status" });
  const more = h("button", { type: "button", class: "more", onclick: () => { state.count += PAGE_ITEMS; show(); } });

  const value = (item, row) => number(item.values[row]);
  const lead = (item) => gain(value(item, state.a), value(item, state.b), higherItemIsBetter);
  // for accuracy, an item is either correct or wrong
  const isBinary = (score) => score === null || score === 0 || score === 100;
  const isAccuracy = higherItemIsBetter && items.every((item) => item.values.every(isBinary));
  const joint = (item) => quality(value(item, state.a)) + quality(value(item, state.b));
  const keys = {
    difference: (item) => -Math.abs(lead(item)),
    first: (item) => -lead(item),
    second: lead,
    worst: joint,
    best: (item) => -joint(item),
  };

  const matches = (item, query) =>
    [item.input, item.reference, ...item.outputs, `#${item.key}`].some((text) => text && text.toLowerCase().includes(query));

  function output(item, row, other) {
    const score = item.values[row];
    const text = isAccuracy ? { 0: "wrong", 100: "correct" }[score] : `${data.item_metric.name} ${digits(score)}`;
    const head = h("h4", {}, h("span", {}, sign(row), " ", nameOf(row)), h("span", { class: "value" }, text));
    return h("div", { class: "output" }, head, hasOutputs ? outputText(item, item.outputs[row], other) : null);
  }

  function verdict(item) {
    const by = lead(item), better = nameOf(by > 0 ? state.a : state.b);
    if (by === 0) return h("span", {}, isAccuracy ? `both ${value(item, state.a) ? "correct" : "wrong"}` : "equal");
    if (isAccuracy) return h("span", {}, "only ", better, " is correct");
    return h("span", {}, better, " is better", Number.isFinite(by) ? ` by ${digits(Math.abs(by))}` : "");
  }

  // Created when opened: hundreds of items with all outputs are slow to lay out.
  function allOutputs(item) {
    const details = h("details", {}, h("summary", {}, `All ${rows.length} models`));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const other = hasReferences ? item.reference : null;
      details.append(h("div", { class: "columns" }, rows.map((_, row) => output(item, row, other))));
    });
    return details;
  }

  // Long inputs are folded.
  function folded(text) {
    const paragraph = h("p", { dir: "auto" }, text);
    if (text.length <= MAX_UNFOLDED_CHARS) return paragraph;
    paragraph.classList.add("folded");
    const button = h("button", { type: "button", class: "unfold", onclick: () => unfold(paragraph) }, "Show all");
    return h("div", {}, paragraph, button);
  }

  function unfold(text) {
    text.classList.remove("folded");
    text.nextElementSibling.remove();
  }

  // A recording to play, an image, or frames of a clip.
  function preview(item) {
    const { kind, urls, note } = item.preview;
    const pauseOthers = (event) => list.querySelectorAll("audio").forEach((other) => other === event.target || other.pause());
    const parts = urls.map((src, i) => (kind === "audio"
      ? h("audio", { controls: true, preload: "metadata", src, "aria-label": `recording of item ${item.key}`, onplay: pauseOthers })
      : h("img", { src, alt: urls.length > 1 ? `frame ${i + 1} of item ${item.key}` : `image of item ${item.key}` })));
    return h("figure", { class: "preview" }, h("div", {}, parts), note ? h("figcaption", {}, note) : null);
  }

  function inputFields(item) {
    const fields = [["input", item.preview ? h("div", {}, preview(item), folded(item.input)) : folded(item.input)]];
    if (hasReferences) fields.push(["reference", outputText(item, item.reference, null)]); // the reference may be empty
    if (data.output_type === "tags" && item.reference) fields.shift(); // the words are above the tags of the reference
    return h("dl", { class: "fields" }, fields.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]).flat());
  }

  function comparedText(item, row) {
    if (state.against === "reference") return item.reference;
    return state.a === state.b ? null : item.outputs[row === state.a ? state.b : state.a];
  }

  function card(item) {
    const pair = state.a === state.b ? [state.a] : [state.a, state.b];
    return h("article", { class: "item", "aria-label": `item ${item.key}` },
      h("div", { class: "verdict" }, h("span", {}, `#${item.key}`), pair.length > 1 ? verdict(item) : null),
      inputFields(item),
      h("div", { class: "columns" }, pair.map((row) => output(item, row, comparedText(item, row)))),
      rows.length > pair.length ? allOutputs(item) : null);
  }

  function showCounts(matching) {
    const wins = [1, -1].map((sign) => matching.filter((item) => Math.sign(lead(item)) === sign).length);
    const equal = matching.length - wins[0] - wins[1];
    const text = [nameOf(state.a), ` is better on ${wins[0]}, `, nameOf(state.b), ` on ${wins[1]}, equal on ${equal}.`];
    counts.replaceChildren(`${matching.length} of ${items.length} items. `, ...(state.a === state.b ? [] : text));
  }

  function show() {
    const query = state.filter.trim().toLowerCase();
    const matching = items.filter((item) => !query || matches(item, query));
    const ordered = matching.map((item) => [keys[state.order](item), item]);
    ordered.sort(([x, left], [y, right]) => (x === y ? left.key - right.key : x < y ? -1 : 1));
    const visible = ordered.slice(0, state.count);
    list.replaceChildren(...visible.map(([, item]) => card(item)));
    // the length of a line is known only after layout
    list.querySelectorAll(".folded").forEach((text) => { if (text.scrollHeight <= text.clientHeight + 2) unfold(text); });
    showCounts(matching);
    more.textContent = `Show ${Math.min(PAGE_ITEMS, matching.length - visible.length)} more`;
    more.hidden = visible.length >= matching.length;
  }

  const setter = (name, read = (text) => text) => (text) => {
    [state[name], state.count] = [read(text), PAGE_ITEMS];
    show();
  };
  const names = Object.fromEntries(rows.map((row, index) => [index, row.name]));
  const canMark = hasOutputs && hasReferences && rows.length > 1;
  const references = { other: "each other", reference: "the reference" };
  const filter = { type: "search", placeholder: "Filter: a word or #number", "aria-label": "filter items" };
  box.append(
    h("div", { class: "controls" },
      rows.length > 1 ? select("Compare", names, a, setter("a", Number)) : null,
      rows.length > 1 ? select("with", names, b, setter("b", Number)) : null,
      select("order", ORDERS, state.order, setter("order")),
      canMark ? select("mark differences from", references, state.against, setter("against")) : null,
      h("input", { ...filter, oninput: (event) => setter("filter")(event.target.value) })),
    counts, list, more);
  show();
}
