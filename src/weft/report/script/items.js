// Test items: the outputs of two models side by side, with the differences marked.

const PAGE_ITEMS = 10;
const MAX_UNFOLDED_CHARS = 160; // shorter inputs are never folded

// ---- texts with differences marked

// For each token of `own`, whether it is in the longest common subsequence with `other`.
function common(own, other) {
  const width = other.length + 1;
  const best = new Uint16Array((own.length + 1) * width);
  for (let i = own.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      const without = Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      best[i * width + j] = own[i] === other[j] ? best[(i + 1) * width + j + 1] + 1 : without;
    }
  }
  const kept = new Array(own.length).fill(false);
  for (let i = 0, j = 0; i < own.length && j < other.length;) {
    if (own[i] === other[j]) [kept[i], i, j] = [true, i + 1, j + 1];
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}

// Split into words if there are spaces, else into characters, for languages without spaces and for single words.
function splitter(text, other) {
  const words = data.output_type !== "text" || /\s/.test(text) || /\s/.test(other);
  return (string) => (words ? string.split(/(\s+)/).filter((token) => token !== "") : [...string]);
}

// A text with the tokens marked that the other text lacks; adjacent ones together.
function marked(text, other) {
  if (other === null || other === undefined) return [text];
  const split = splitter(text, other), solid = (token) => token.trim() !== "";
  const kept = common(split(text).filter(solid), split(other).filter(solid));
  const runs = [];
  let at = 0;
  for (const token of split(text)) {
    const last = runs[runs.length - 1];
    const same = solid(token) ? kept[at++] : !last || last.same; // a space belongs to the token before it
    if (last && last.same === same) last.text += token;
    else runs.push({ same, text: token });
  }
  return runs.flatMap((run) => {
    const end = run.text.trimEnd().length;
    return run.same ? [run.text] : [h("mark", {}, run.text.slice(0, end)), run.text.slice(end)];
  });
}

// Labels are a set: those that the other lacks are marked.
function labeled(text, other) {
  const theirs = new Set((other ?? text).split(", "));
  return text.split(", ").flatMap((label, at) => [at ? ", " : "", theirs.has(label) ? label : h("mark", {}, label)]);
}

// Tags below their words; those that differ from the other are marked.
function tagged(words, tags, other) {
  const theirs = other === null || other === undefined ? tags : other.split(" ");
  return h("p", { class: "words" }, tags.map((tag, at) =>
    h(tag === theirs[at] ? "span" : "mark", {}, h("span", {}, words[at], h("small", {}, tag)))));
}

function written(item, text, other) {
  if (text === null || text === undefined) return h("p", { class: "empty" }, "not evaluated");
  if (text === "") return h("p", { class: "empty" }, "empty");
  const words = item.input.split(" "), tags = text.split(" ");
  if (data.output_type === "tags" && words.length === tags.length) return tagged(words, tags, other);
  return h("p", { dir: "auto" }, data.output_type === "labels" ? labeled(text, other) : marked(text, other));
}

// ---- ranking

// How much better x is than y; a missing value is worse than any other.
function gain(x, y, up) {
  if (x === y || (Number.isNaN(x) && Number.isNaN(y))) return 0;
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? -Infinity : Infinity;
  return up ? x - y : y - x;
}

// Items may have another metric than the comparison: BLEU is not meaningful for a single line.
const itemsUp = data.item_metric.better === "higher";

// Larger is better, whatever the direction of the metric.
function goodness(value) {
  if (Number.isNaN(value)) return -Infinity;
  return itemsUp ? value : -value;
}

const bestFirst = () => [...rows.keys()].sort((a, b) =>
  rows[b].best - rows[a].best || Math.sign(gain(number(rows[b].value), number(rows[a].value), upwards)));

// ---- the list

const ORDERS = {
  apart: "largest difference",
  first: "first model better",
  second: "second model better",
  worst: "both worst",
  best: "both best",
};

function Items(box) {
  const items = data.items;
  const writes = items.some((item) => item.outputs.some((text) => text !== null)); // language models have no outputs
  const refers = items.some((item) => item.reference);
  const [a, b = a] = bestFirst();
  // labels and tags are compared with the reference; free text differs from it everywhere
  const against = data.output_type === "text" || !refers ? "other" : "reference";
  const state = { a, b, order: "apart", against, filter: "", count: PAGE_ITEMS };
  const list = h("div"), tally = h("p", { class: "tally", role: "status" });
  const more = h("button", { type: "button", class: "more", onclick: () => { state.count += PAGE_ITEMS; show(); } });

  const value = (item, row) => number(item.values[row]);
  const ahead = (item) => gain(value(item, state.a), value(item, state.b), itemsUp);
  // accuracy of a single item is all or nothing
  const plain = itemsUp && items.every((item) => item.values.every((score) => score === null || score === 0 || score === 100));
  const both = (item) => goodness(value(item, state.a)) + goodness(value(item, state.b));
  const keys = {
    apart: (item) => -Math.abs(ahead(item)),
    first: (item) => -ahead(item),
    second: ahead,
    worst: both,
    best: (item) => -both(item),
  };

  const finds = (item, wanted) =>
    [item.input, item.reference, ...item.outputs, `#${item.key}`].some((text) => text && text.toLowerCase().includes(wanted));

  function output(item, row, other) {
    const score = item.values[row], text = plain ? { 0: "wrong", 100: "correct" }[score] : `${data.item_metric.name} ${digits(score)}`;
    const head = h("h4", {}, h("span", {}, sign(row), " ", named(row)), h("span", { class: "value" }, text));
    return h("div", { class: "output" }, head, writes ? written(item, item.outputs[row], other) : null);
  }

  function verdict(item) {
    const by = ahead(item), first = named(by > 0 ? state.a : state.b);
    if (by === 0) return h("span", {}, plain ? `both ${value(item, state.a) ? "correct" : "wrong"}` : "equal");
    if (plain) return h("span", {}, "only ", first, " is correct");
    return h("span", {}, first, " is better", Number.isFinite(by) ? ` by ${digits(Math.abs(by))}` : "");
  }

  // Created when opened: hundreds of items with all outputs are slow to lay out.
  function everyone(item) {
    const all = h("details", {}, h("summary", {}, `All ${rows.length} models`));
    all.addEventListener("toggle", () => {
      if (!all.open || all.children.length > 1) return;
      const other = refers ? item.reference : null;
      all.append(h("div", { class: "two" }, rows.map((_, row) => output(item, row, other))));
    });
    return all;
  }

  // Long inputs are folded.
  function folded(text) {
    const all = h("p", { dir: "auto" }, text);
    if (text.length <= MAX_UNFOLDED_CHARS) return all;
    all.classList.add("folded");
    return h("div", {}, all, h("button", { type: "button", class: "unfold", onclick: () => unfold(all) }, "Show all"));
  }

  function unfold(text) {
    text.classList.remove("folded");
    text.nextElementSibling.remove();
  }

  function question(item) {
    const fields = [["input", folded(item.input)]];
    if (refers) fields.push(["reference", written(item, item.reference, null)]); // the reference may be empty
    if (data.output_type === "tags" && item.reference) fields.shift(); // the words are above the tags of the reference
    return h("dl", { class: "asked" }, fields.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]).flat());
  }

  function other(item, row) {
    if (state.against === "reference") return item.reference;
    return state.a === state.b ? null : item.outputs[row === state.a ? state.b : state.a];
  }

  function card(item) {
    const pair = state.a === state.b ? [state.a] : [state.a, state.b];
    return h("article", { class: "item", "aria-label": `item ${item.key}` },
      h("div", { class: "verdict" }, h("span", {}, `#${item.key}`), pair.length > 1 ? verdict(item) : null),
      question(item),
      h("div", { class: "two" }, pair.map((row) => output(item, row, other(item, row)))),
      rows.length > pair.length ? everyone(item) : null);
  }

  function count(matches) {
    const wins = [1, -1].map((way) => matches.filter((item) => Math.sign(ahead(item)) === way).length);
    const equal = matches.length - wins[0] - wins[1];
    const text = [named(state.a), ` is better on ${wins[0]}, `, named(state.b), ` on ${wins[1]}, equal on ${equal}.`];
    tally.replaceChildren(`${matches.length} of ${items.length} items. `, ...(state.a === state.b ? [] : text));
  }

  function show() {
    const wanted = state.filter.trim().toLowerCase();
    const matches = items.filter((item) => !wanted || finds(item, wanted));
    const ordered = matches.map((item) => [keys[state.order](item), item]);
    ordered.sort(([x, left], [y, right]) => (x === y ? left.key - right.key : x < y ? -1 : 1));
    const drawn = ordered.slice(0, state.count);
    list.replaceChildren(...drawn.map(([, item]) => card(item)));
    // the length of a line is known only after layout
    list.querySelectorAll(".folded").forEach((text) => { if (text.scrollHeight <= text.clientHeight + 2) unfold(text); });
    count(matches);
    more.textContent = `Show ${Math.min(PAGE_ITEMS, matches.length - drawn.length)} more`;
    more.hidden = drawn.length >= matches.length;
  }

  const set = (name, read = (text) => text) => (text) => {
    [state[name], state.count] = [read(text), PAGE_ITEMS];
    show();
  };
  const names = Object.fromEntries(rows.map((row, at) => [at, row.name]));
  const marks = { other: "each other", reference: "the reference" };
  const filter = { type: "search", placeholder: "Filter: a word or #number", "aria-label": "filter items" };
  box.append(
    h("div", { class: "controls" },
      rows.length > 1 ? [select("Compare", names, a, set("a", Number)), select("with", names, b, set("b", Number))] : null,
      select("order", ORDERS, state.order, set("order")),
      writes && refers && rows.length > 1 ? select("mark differences from", marks, state.against, set("against")) : null,
      h("input", { ...filter, oninput: (event) => set("filter")(event.target.value) })),
    tally, list, more);
  show();
}
