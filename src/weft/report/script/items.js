// Item by item: where two models differ, their outputs side by side, and what differs in them marked.

const PAGE = 10;
const LONG = 160; // letters up to which no input is folded, however narrow the page

// ---- texts with what differs marked

// For each piece of `mine`, whether it is in the longest common subsequence with `theirs`.
function common(mine, theirs) {
  const width = theirs.length + 1;
  const best = new Uint16Array((mine.length + 1) * width);
  for (let i = mine.length - 1; i >= 0; i -= 1) {
    for (let j = theirs.length - 1; j >= 0; j -= 1) {
      const without = Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
      best[i * width + j] = mine[i] === theirs[j] ? best[(i + 1) * width + j + 1] + 1 : without;
    }
  }
  const kept = new Array(mine.length).fill(false);
  for (let i = 0, j = 0; i < mine.length && j < theirs.length;) {
    if (mine[i] === theirs[j]) [kept[i], i, j] = [true, i + 1, j + 1];
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}

// Words where there are spaces, else letters: of a language without spaces, or a single word, letters are what differs.
function pieces(text, other) {
  const words = data.task !== "translate" || /\s/.test(text) || /\s/.test(other);
  return (one) => (words ? one.split(/(\s+)/).filter((piece) => piece !== "") : [...one]);
}

// A text whose pieces that the other lacks are marked; neighbours together.
function marked(text, other) {
  if (other === null || other === undefined) return [text];
  const split = pieces(text, other), solid = (piece) => piece.trim() !== "";
  const kept = common(split(text).filter(solid), split(other).filter(solid));
  const runs = [];
  let at = 0;
  for (const piece of split(text)) {
    const last = runs[runs.length - 1];
    const same = solid(piece) ? kept[at++] : !last || last.same; // a space is as what stands before it
    if (last && last.same === same) last.text += piece;
    else runs.push({ same, text: piece });
  }
  return runs.flatMap((run) => {
    const end = run.text.trimEnd().length;
    return run.same ? [run.text] : [h("mark", {}, run.text.slice(0, end)), run.text.slice(end)];
  });
}

// Labels are a set: those that the other lacks are marked, whatever their order.
function labelled(text, other) {
  const theirs = new Set((other ?? text).split(", "));
  return text.split(", ").flatMap((label, at) => [at ? ", " : "", theirs.has(label) ? label : h("mark", {}, label)]);
}

// Tags stand under their words; those that the other has otherwise are marked.
function tagged(words, tags, other) {
  const theirs = other === null || other === undefined ? tags : other.split(" ");
  return h("p", { class: "words" }, tags.map((tag, at) =>
    h(tag === theirs[at] ? "span" : "mark", {}, h("span", {}, words[at], h("small", {}, tag)))));
}

function written(item, text, other) {
  if (text === null || text === undefined) return h("p", { class: "empty" }, "not measured");
  if (text === "") return h("p", { class: "empty" }, "nothing");
  const words = item.input.split(" "), tags = text.split(" ");
  if (data.task === "tag" && words.length === tags.length) return tagged(words, tags, other);
  return h("p", { dir: "auto" }, data.task === "classify" ? labelled(text, other) : marked(text, other));
}

// ---- which is better

// How much better x is than y; what is not known is worse than anything.
function gain(x, y, up) {
  if (x === y || (Number.isNaN(x) && Number.isNaN(y))) return 0;
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? -Infinity : Infinity;
  return up ? x - y : y - x;
}

// Items may have a score of their own, which may go the other way: BLEU says nothing of one line.
const itemsUp = data.item_score.better === "higher";

// Larger is better, whichever way the score goes.
function goodness(value) {
  if (Number.isNaN(value)) return -Infinity;
  return itemsUp ? value : -value;
}

const bestFirst = () => [...rows.keys()].sort((a, b) =>
  rows[b].best - rows[a].best || Math.sign(gain(number(rows[b].value), number(rows[a].value), upwards)));

// ---- the list

const ORDERS = {
  apart: "where they differ most",
  first: "first one ahead",
  second: "second one ahead",
  worst: "worst of both",
  best: "best of both",
};

function Items(box) {
  const items = data.items;
  const writes = items.some((item) => item.outputs.some((text) => text !== null)); // language models only read
  const refers = items.some((item) => item.reference);
  const [a, b = a] = bestFirst();
  // of a label or a tag the reference says what is wrong; of what is written freely it differs from everything
  const against = data.task === "translate" || !refers ? "other" : "reference";
  const state = { a, b, order: "apart", against, filter: "", count: PAGE };
  const list = h("div"), tally = h("p", { class: "tally", role: "status" });
  const more = h("button", { type: "button", class: "more", onclick: () => { state.count += PAGE; show(); } });

  const value = (item, row) => number(item.values[row]);
  const ahead = (item) => gain(value(item, state.a), value(item, state.b), itemsUp);
  // of one item accuracy is all or nothing
  const plain = itemsUp && items.every((item) => item.values.every((one) => one === null || one === 0 || one === 100));
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
    const one = item.values[row], told = plain ? { 0: "wrong", 100: "right" }[one] : `${data.item_score.name} ${digits(one)}`;
    const head = h("h4", {}, h("span", {}, sign(row), " ", named(row)), h("span", { class: "value" }, told));
    return h("div", { class: "output" }, head, writes ? written(item, item.outputs[row], other) : null);
  }

  function verdict(item) {
    const by = ahead(item), first = named(by > 0 ? state.a : state.b);
    if (by === 0) return h("span", {}, plain ? `both ${value(item, state.a) ? "right" : "wrong"}` : "equal");
    if (plain) return h("span", {}, "only ", first, " is right");
    return h("span", {}, first, " is ahead", Number.isFinite(by) ? ` by ${digits(Math.abs(by))}` : "");
  }

  // Drawn when it is opened: hundreds of items with all their outputs are slow to lay out.
  function everyone(item) {
    const all = h("details", {}, h("summary", {}, `All ${rows.length} models`));
    all.addEventListener("toggle", () => {
      if (!all.open || all.children.length > 1) return;
      const other = refers ? item.reference : null;
      all.append(h("div", { class: "two" }, rows.map((_, row) => output(item, row, other))));
    });
    return all;
  }

  // What was read may be a page of text; who wants to read all of it opens it.
  function folded(text) {
    const all = h("p", { dir: "auto" }, text);
    if (text.length <= LONG) return all;
    all.classList.add("folded");
    return h("div", {}, all, h("button", { type: "button", class: "unfold", onclick: () => unfold(all) }, "Read all of it"));
  }

  function unfold(text) {
    text.classList.remove("folded");
    text.nextElementSibling.remove();
  }

  function asked(item) {
    const told = [["input", folded(item.input)]];
    if (refers) told.push(["reference", written(item, item.reference, null)]); // nothing may be what is right
    if (data.task === "tag" && item.reference) told.shift(); // its words stand above the reference's tags
    return h("dl", { class: "asked" }, told.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]).flat());
  }

  function other(item, row) {
    if (state.against === "reference") return item.reference;
    return state.a === state.b ? null : item.outputs[row === state.a ? state.b : state.a];
  }

  function card(item) {
    const pair = state.a === state.b ? [state.a] : [state.a, state.b];
    return h("article", { class: "item", "aria-label": `item ${item.key}` },
      h("div", { class: "verdict" }, h("span", {}, `#${item.key}`), pair.length > 1 ? verdict(item) : null),
      asked(item),
      h("div", { class: "two" }, pair.map((row) => output(item, row, other(item, row)))),
      rows.length > pair.length ? everyone(item) : null);
  }

  function count(found) {
    const wins = [1, -1].map((way) => found.filter((item) => Math.sign(ahead(item)) === way).length);
    const equal = found.length - wins[0] - wins[1];
    const told = [named(state.a), ` is ahead on ${wins[0]}, `, named(state.b), ` on ${wins[1]}, equal on ${equal}.`];
    tally.replaceChildren(`${found.length} of ${items.length} items. `, ...(state.a === state.b ? [] : told));
  }

  function show() {
    const wanted = state.filter.trim().toLowerCase();
    const found = items.filter((item) => !wanted || finds(item, wanted));
    const ordered = found.map((item) => [keys[state.order](item), item]);
    ordered.sort(([x, one], [y, two]) => (x === y ? one.key - two.key : x < y ? -1 : 1));
    const drawn = ordered.slice(0, state.count);
    list.replaceChildren(...drawn.map(([, item]) => card(item)));
    // how many letters a line has, only the page knows
    list.querySelectorAll(".folded").forEach((text) => { if (text.scrollHeight <= text.clientHeight + 2) unfold(text); });
    count(found);
    more.textContent = `Show ${Math.min(PAGE, found.length - drawn.length)} more`;
    more.hidden = drawn.length >= found.length;
  }

  const set = (name, read = (text) => text) => (text) => {
    [state[name], state.count] = [read(text), PAGE];
    show();
  };
  const names = Object.fromEntries(rows.map((row, at) => [at, row.name]));
  const marks = { other: "each other", reference: "the reference" };
  const filter = { type: "search", placeholder: "Filter: a word, or #number", "aria-label": "filter items" };
  box.append(
    h("div", { class: "controls" },
      rows.length > 1 ? [select("Compare", names, a, set("a", Number)), select("with", names, b, set("b", Number))] : null,
      select("order", ORDERS, state.order, set("order")),
      writes && refers && rows.length > 1 ? select("mark what differs from", marks, state.against, set("against")) : null,
      h("input", { ...filter, oninput: (event) => set("filter")(event.target.value) })),
    tally, list, more);
  show();
}
