// Confusion matrices as heat maps: a cell's shade is its share of all that were meant to have that label.

const FEW = 16; // labels up to which all matrices stand side by side, with numbers in their cells
const LETTERS = 18; // of a label; the rest is told when a cell of it is pointed at

// Where things stand in a heat map of so many labels.
function heatPlan(labels) {
  const cell = labels.length <= FEW ? 30 : labels.length <= 30 ? 20 : 15;
  const letters = Math.max(...labels.map((label) => Math.min(label.length, LETTERS)));
  const room = Math.max(50, 12 + letters * 6.4), side = labels.length * cell;
  return { cell, room, side, width: room + side + 2 + letters * 3, height: room + side + 2 };
}

function heatHeads(labels, { cell, room }) {
  const cut = (label) => (label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label);
  const meant = labels.map((label, at) =>
    s("text", { x: room - 6, y: room + (at + 0.5) * cell, dy: ".35em", "text-anchor": "end" }, cut(label)));
  const said = labels.map((label, at) =>
    s("text", { transform: `translate(${room + (at + 0.65) * cell} ${room - 5}) rotate(-60)` }, cut(label)));
  return [meant, said];
}

function heatCell(times, share, i, j, { cell, room, numbered }) {
  if (!times) return [];
  const [x, y] = [room + j * cell, room + i * cell];
  // by the square root, or rare mistakes could not be seen beside what is right
  const shade = { class: "cell", x, y, width: cell, height: cell, "fill-opacity": Math.max(0.04, Math.sqrt(share)).toFixed(3) };
  const place = { class: share > 0.25 ? "on" : "", x: x + cell / 2, y: y + cell / 2, dy: ".35em", "text-anchor": "middle" };
  return [s("rect", shade), numbered ? s("text", place, times < 1000 ? times : short(times)) : null];
}

function heatGrid(count, { cell, room, side }) {
  const places = [...Array(count + 1).keys()].map((at) => room + at * cell);
  const lines = places.map((at) => `M${room} ${at}h${side}M${at} ${room}v${side}`);
  const right = places.slice(0, -1).map((at) => `M${at} ${at}h${cell}v${cell}h${-cell}z`);
  return [s("path", { class: "edge", d: lines.join("") }), s("path", { class: "right", d: right.join("") })];
}

function heat(row, tell) {
  const { labels, matrices } = data.confusions, matrix = matrices[row], count = labels.length;
  const plan = { ...heatPlan(labels), numbered: count <= FEW }, { cell, room, width, height } = plan;
  const sums = matrix.map((line) => line.reduce((a, b) => a + b, 0));
  const heads = heatHeads(labels, plan);
  const cells = matrix.flatMap((line, i) => line.flatMap((times, j) => heatCell(times, times / sums[i], i, j, plan)));
  const here = s("rect", { class: "here", width: cell, height: cell, visibility: "hidden" });
  const title = `confusions of ${rows[row].name}; arrow keys move from cell to cell`;
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const svg = s("svg", { class: "heat", ...size, tabindex: "0", role: "img", "aria-label": title },
    heads.flat(), cells, heatGrid(count, plan), here);

  let now = [0, -1];
  const inside = (at) => Math.min(count - 1, Math.max(0, at));
  function visit(i, j) {
    svg.querySelectorAll(".lit").forEach((text) => text.classList.remove("lit"));
    now = [inside(i), inside(j)];
    now.forEach((at, axis) => heads[axis][at].classList.add("lit"));
    fill(here, { x: room + now[1] * cell, y: room + now[0] * cell, visibility: "visible" }, []);
    const times = matrix[now[0]][now[1]], all = sums[now[0]];
    const share = all ? ` (${digits((100 * times) / all)} %)` : "";
    tell(`meant ${labels[now[0]]}, said ${labels[now[1]]}: ${fixed(times, 0)} of ${fixed(all, 0)}${share}`);
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
  const told = h("p", { class: "told", role: "status" }, "Point at a cell, or tap it.");
  const drawn = heat(row, (text) => { told.textContent = text; });
  return h("figure", {}, h("figcaption", {}, sign(row), " ", named(row)), h("div", { class: "scroll" }, drawn), told);
}

function Confusions(box) {
  const measured = [...rows.keys()].filter((row) => data.confusions.matrices[row]);
  const best = measured.find((row) => rows[row].best) ?? measured[0];
  const few = data.confusions.labels.length <= FEW;
  const figures = h("div", { class: "heats" });
  const show = (list) => figures.replaceChildren(...list.map(heatFigure));
  if (!few && measured.length > 1) {
    const names = Object.fromEntries(measured.map((row) => [row, rows[row].name]));
    box.append(h("div", { class: "controls" }, select("Model", names, best, (row) => show([Number(row)]))));
  }
  box.append(figures);
  show(few ? measured : [best]);
}
