// Differences between the outputs of two runs: units that are not in the longest common subsequence.

const MAX_CELLS = 4_000_000;

/** Whether each unit of both lists is in the longest common subsequence. */
export function common(a, b) {
  const inA = new Array(a.length).fill(false), inB = new Array(b.length).fill(false);
  if (a.length * b.length > MAX_CELLS) {
    a.forEach((text, index) => { inA[index] = inB[index] = text === b[index]; });
    return [inA, inB.slice(0, b.length)];
  }
  const width = b.length + 1, table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const skip = Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : skip;
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { inA[i++] = inB[j++] = true; }
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i++;
    else j++;
  }
  return [inA, inB];
}

/** What two classifiers say. */
function labelsVerdict(first, second) {
  const names = Object.keys(first.probabilities).filter((name) => name in second.probabilities);
  const points = Math.max(0, ...names.map((name) => 100 * Math.abs(first.probabilities[name] - second.probabilities[name])));
  const verdict = first.labels === second.labels ? `Both runs say ${first.labels}` : `The runs disagree: ${first.labels} or ${second.labels}`;
  return `${verdict}. The probabilities of a label differ by up to ${points.toFixed(1)} points.`;
}

/** Mark what differs between two results, and say it. */
export function compareResults(first, second) {
  const verdict = markDifferences(first.units, second.units);
  return first.probabilities && second.probabilities ? labelsVerdict(first, second) : verdict;
}

/** Mark the units that differ, and say how many. */
function markDifferences(first, second) {
  const flags = common(first.map((unit) => unit.text), second.map((unit) => unit.text));
  let number = 0;
  [first, second].forEach((units, side) => units.forEach((unit, index) => {
    if (flags[side][index]) return;
    number++;
    for (const element of unit.elements) {
      element.classList.add("differs");
      const label = element.getAttribute("aria-label");
      if (label) element.setAttribute("aria-label", `${label}, differs`);
    }
  }));
  if (!number) return "Both runs have the same output.";
  const total = Math.max(first.length, second.length), different = Math.max(...flags.map((side) => side.filter((each) => !each).length));
  return `The outputs differ in ${different} of ${total} parts, which are marked with a wavy line.`;
}

/** Tokens as words: a word starts at a space. */
export function tokenWords(tokens) {
  const units = [];
  let isOpen = false;
  for (const { record, element } of tokens) {
    const text = record.text;
    if (!isOpen || /^\s/.test(text)) units.push({ text: "", elements: [] });
    units.at(-1).text += text.trim();
    units.at(-1).elements.push(element);
    isOpen = !/\s$/.test(text);
  }
  return units.filter((unit) => unit.text);
}
