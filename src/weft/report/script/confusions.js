// Confusion matrices as heatmaps: the shade of a cell is its fraction of the gold label.

const MAX_NUMBERED_LABELS = 16; // with at most this many, matrices are side by side and cells have numbers
const MAX_LABEL_CHARS = 18; // longer labels are shown in full when you point at a cell

// The layout of a heatmap.
function heatLayout(labels) {
  const cell = labels.length <= MAX_NUMBERED_LABELS ? 30 : labels.length <= 30 ? 20 : 15;
  const chars = Math.max(...labels.map((label) => Math.min(label.length, MAX_LABEL_CHARS)));
  const margin = Math.max(50, 12 + chars * 6.4), side = labels.length * cell;
  return { cell, margin, side, width: margin + side + 2 + chars * 3, height: margin + side + 2 };
}

function heatLabels(labels, { cell, margin }) {
  const shorten = (label) => (label.length > MAX_LABEL_CHARS ? `${label.slice(0, MAX_LABEL_CHARS - 1)}…` : label);
  const gold = labels.map((label, i) =>
    s("text", { x: margin - 6, y: margin + (i + 0.5) * cell, dy: ".35em", "text-anchor": "end" }, shorten(label)));
  const predicted = labels.map((label, i) =>
    s("text", { transform: `translate(${margin + (i + 0.65) * cell} ${margin - 5}) rotate(-60)` }, shorten(label)));
  return [gold, predicted];
}

function heatCell(count, fraction, i, j, { cell, margin, numbered }) {
  if (!count) return [];
  const [x, y] = [margin + j * cell, margin + i * cell];
  // square root: otherwise rare errors would be invisible
  const opacity = Math.max(0.04, Math.sqrt(fraction)).toFixed(3);
  const shade = { class: "cell", x, y, width: cell, height: cell, "fill-opacity": opacity };
  const center = { x: x + cell / 2, y: y + cell / 2, dy: ".35em", "text-anchor": "middle" };
  const attributes = { class: fraction > 0.25 ? "inverted" : "", ...center };
  return [s("rect", shade), numbered ? s("text", attributes, count < 1000 ? count : short(count)) : null];
}

function heatGrid(count, { cell, margin, side }) {
  const edges = [...Array(count + 1).keys()].map((i) => margin + i * cell);
  const lines = edges.map((px) => `M${margin} ${px}h${side}M${px} ${margin}v${side}`);
  const diagonal = edges.slice(0, -1).map((px) => `M${px} ${px}h${cell}v${cell}h${-cell}z`);
  return [s("path", { class: "edge", d: lines.join("") }), s("path", { class: "diagonal", d: diagonal.join("") })];
}

function heatmap(row, describe) {
  const { labels, matrices } = data.confusions, matrix = matrices[row], count = labels.length;
  const layout = { ...heatLayout(labels), numbered: count <= MAX_NUMBERED_LABELS }, { cell, margin, width, height } = layout;
  const sums = matrix.map((line) => line.reduce((a, b) => a + b, 0));
  const axisLabels = heatLabels(labels, layout);
  const cells = matrix.flatMap((line, i) => line.flatMap((hits, j) => heatCell(hits, hits / sums[i], i, j, layout)));
  const cursor = s("rect", { class: "cursor", width: cell, height: cell, visibility: "hidden" });
  const title = `confusion matrix of ${rows[row].name}; arrow keys move from cell to cell`;
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const svg = s("svg", { class: "heat", ...size, tabindex: "0", role: "img", "aria-label": title },
    axisLabels.flat(), cells, heatGrid(count, layout), cursor);

  let current = [0, -1];
  const clamp = (index) => Math.min(count - 1, Math.max(0, index));
  function visit(i, j) {
    svg.querySelectorAll(".highlighted").forEach((text) => text.classList.remove("highlighted"));
    current = [clamp(i), clamp(j)];
    current.forEach((index, axis) => axisLabels[axis][index].classList.add("highlighted"));
    fill(cursor, { x: margin + current[1] * cell, y: margin + current[0] * cell, visibility: "visible" }, []);
    const cellCount = matrix[current[0]][current[1]], total = sums[current[0]];
    const percent = total ? ` (${fixed((100 * cellCount) / total, 1)}%)` : "";
    const [gold, predicted] = current.map((index) => labels[index]);
    describe(`gold ${gold}, predicted ${predicted}: ${fixed(cellCount, 0)} of ${fixed(total, 0)}${percent}`);
  }
  const onPointer = (event) => {
    const [j, i] = pointerPosition(svg, event).map((px) => Math.floor((px - margin) / cell));
    if (clamp(i) === i && clamp(j) === j) visit(i, j);
  };
  svg.addEventListener("pointermove", onPointer);
  svg.addEventListener("pointerdown", onPointer);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    visit(current[0] + move[0], current[1] + move[1]);
  });
  return svg;
}

function heatFigure(row) {
  const status = h("p", { class: "status", role: "status" }, "Point at a cell or tap it.");
  const svg = heatmap(row, (text) => { status.textContent = text; });
  return h("figure", {}, h("figcaption", {}, sign(row), " ", nameOf(row)), h("div", { class: "scroll" }, svg), status);
}

function Confusions(box) {
  const available = [...rows.keys()].filter((row) => data.confusions.matrices[row]);
  const best = available.find((row) => rows[row].best) ?? available[0];
  const showsAll = data.confusions.labels.length <= MAX_NUMBERED_LABELS;
  const figures = h("div", { class: "heats" });
  const show = (list) => figures.replaceChildren(...list.map(heatFigure));
  if (!showsAll && available.length > 1) {
    const names = Object.fromEntries(available.map((row) => [row, rows[row].name]));
    box.append(h("div", { class: "controls" }, select("Model", names, best, (row) => show([Number(row)]))));
  }
  box.append(figures);
  show(showsAll ? available : [best]);
}
