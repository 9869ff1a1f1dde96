// Confusion matrices as heatmaps: the shade of a cell is its fraction of the gold label.

const MAX_NUMBERED_LABELS = 16; // up to which all matrices are side by side, with numbers in their cells
const MAX_LABEL_CHARS = 18; // longer labels are shown in full when you point at a cell

// The layout of a heatmap.
function heatPlan(labels) {
  const cell = labels.length <= MAX_NUMBERED_LABELS ? 30 : labels.length <= 30 ? 20 : 15;
  const chars = Math.max(...labels.map((label) => Math.min(label.length, MAX_LABEL_CHARS)));
  const room = Math.max(50, 12 + chars * 6.4), side = labels.length * cell;
  return { cell, room, side, width: room + side + 2 + chars * 3, height: room + side + 2 };
}

function heatHeads(labels, { cell, room }) {
  const shorten = (label) => (label.length > MAX_LABEL_CHARS ? `${label.slice(0, MAX_LABEL_CHARS - 1)}…` : label);
  const gold = labels.map((label, at) =>
    s("text", { x: room - 6, y: room + (at + 0.5) * cell, dy: ".35em", "text-anchor": "end" }, shorten(label)));
  const predicted = labels.map((label, at) =>
    s("text", { transform: `translate(${room + (at + 0.65) * cell} ${room - 5}) rotate(-60)` }, shorten(label)));
  return [gold, predicted];
}

function heatCell(count, fraction, i, j, { cell, room, numbered }) {
  if (!count) return [];
  const [x, y] = [room + j * cell, room + i * cell];
  // square root: otherwise rare errors would be invisible
  const shade = { class: "cell", x, y, width: cell, height: cell, "fill-opacity": Math.max(0.04, Math.sqrt(fraction)).toFixed(3) };
  const place = { class: fraction > 0.25 ? "on" : "", x: x + cell / 2, y: y + cell / 2, dy: ".35em", "text-anchor": "middle" };
  return [s("rect", shade), numbered ? s("text", place, count < 1000 ? count : short(count)) : null];
}

function heatGrid(count, { cell, room, side }) {
  const places = [...Array(count + 1).keys()].map((at) => room + at * cell);
  const lines = places.map((at) => `M${room} ${at}h${side}M${at} ${room}v${side}`);
  const right = places.slice(0, -1).map((at) => `M${at} ${at}h${cell}v${cell}h${-cell}z`);
  return [s("path", { class: "edge", d: lines.join("") }), s("path", { class: "right", d: right.join("") })];
}

function heat(row, tell) {
  const { labels, matrices } = data.confusions, matrix = matrices[row], count = labels.length;
  const plan = { ...heatPlan(labels), numbered: count <= MAX_NUMBERED_LABELS }, { cell, room, width, height } = plan;
  const sums = matrix.map((line) => line.reduce((a, b) => a + b, 0));
  const heads = heatHeads(labels, plan);
  const cells = matrix.flatMap((line, i) => line.flatMap((cellCount, j) => heatCell(cellCount, cellCount / sums[i], i, j, plan)));
  const cursor = s("rect", { class: "here", width: cell, height: cell, visibility: "hidden" });
  const title = `confusion matrix of ${rows[row].name}; arrow keys move from cell to cell`;
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const svg = s("svg", { class: "heat", ...size, tabindex: "0", role: "img", "aria-label": title },
    heads.flat(), cells, heatGrid(count, plan), cursor);

  let now = [0, -1];
  const inside = (at) => Math.min(count - 1, Math.max(0, at));
  function visit(i, j) {
    svg.querySelectorAll(".lit").forEach((text) => text.classList.remove("lit"));
    now = [inside(i), inside(j)];
    now.forEach((at, axis) => heads[axis][at].classList.add("lit"));
    fill(cursor, { x: room + now[1] * cell, y: room + now[0] * cell, visibility: "visible" }, []);
    const hits = matrix[now[0]][now[1]], all = sums[now[0]];
    const percent = all ? ` (${fixed((100 * hits) / all, 1)}%)` : "";
    tell(`gold ${labels[now[0]]}, predicted ${labels[now[1]]}: ${fixed(hits, 0)} of ${fixed(all, 0)}${percent}`);
  }
  const look = (event) => {
    const [j, i] = pixel(svg, event).map((at) => Math.floor((at - room) / cell));
    if (inside(i) === i && inside(j) === j) visit(i, j);
  };
  svg.addEventListener("pointermove", look);
  svg.addEventListener("pointerdown", look);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    visit(now[0] + move[0], now[1] + move[1]);
  });
  return svg;
}

function heatFigure(row) {
  const told = h("p", { class: "told", role: "status" }, "Point at a cell or tap it.");
  const drawn = heat(row, (text) => { told.textContent = text; });
  return h("figure", {}, h("figcaption", {}, sign(row), " ", named(row)), h("div", { class: "scroll" }, drawn), told);
}

function Confusions(box) {
  const measured = [...rows.keys()].filter((row) => data.confusions.matrices[row]);
  const best = measured.find((row) => rows[row].best) ?? measured[0];
  const few = data.confusions.labels.length <= MAX_NUMBERED_LABELS;
  const figures = h("div", { class: "heats" });
  const show = (list) => figures.replaceChildren(...list.map(heatFigure));
  if (!few && measured.length > 1) {
    const names = Object.fromEntries(measured.map((row) => [row, rows[row].name]));
    box.append(h("div", { class: "controls" }, select("Model", names, best, (row) => show([Number(row)]))));
  }
  box.append(figures);
  show(few ? measured : [best]);
}
