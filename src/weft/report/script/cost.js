// Score against cost, with the Pareto front.

const COSTS = {
  num_parameters: { title: "parameters", text: short },
  seconds: { title: "training time", text: duration },
  model_bytes: { title: "size on disk", text: size },
  peak_memory: { title: "peak memory", text: size },
  inference_rate: {
    title: "inference speed",
    text: (value) => `${short(value)} ${data.inference_unit}`,
    higherIsCheaper: true,
  },
};

const isBetter = (a, b) => (higherIsBetter ? a > b : a < b);

// The Pareto front: rows that no other row beats in both cost and score, cheapest first.
function paretoFront(points, { higherIsCheaper }) {
  const cheapest = [...points].sort((a, b) =>
    (higherIsCheaper ? b.cost - a.cost : a.cost - b.cost) || (isBetter(a.value, b.value) ? -1 : 1));
  const front = [];
  for (const candidate of cheapest) {
    if (!front.length || isBetter(candidate.value, front[front.length - 1].value)) front.push(candidate);
  }
  return front;
}

const LABEL_OFFSETS = [
  [10, 4, "start"], [-10, 4, "end"], [10, 18, "start"], [-10, -10, "end"], [10, -10, "start"], [-10, 18, "end"],
  [0, -14, "middle"], [0, 22, "middle"],
];

// The area in which two boxes overlap.
const overlap = (a, b) =>
  Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left))
  * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));

// The name of a point, placed where it covers as little as possible and stays inside.
function placeLabel(item, occupiedBoxes, inner) {
  const width = 7.2 * item.name.length + 4;
  const boxes = LABEL_OFFSETS.map(([dx, dy, anchor]) => {
    const left = item.x + dx - { start: 0, middle: width / 2, end: width }[anchor];
    return { dx, dy, anchor, left, right: left + width, top: item.y + dy - 12, bottom: item.y + dy + 4 };
  });
  const outside = (box) => Math.max(0, inner.left - box.left, box.right - inner.right);
  const penalty = (box) => occupiedBoxes.reduce((sum, other) => sum + overlap(box, other), 0) + 40 * outside(box);
  const best = boxes.reduce((a, b) => (penalty(b) < penalty(a) ? b : a));
  occupiedBoxes.push(best);
  return s("text", { class: "label", x: item.x + best.dx, y: item.y + best.dy, "text-anchor": best.anchor }, item.name);
}

const boxAround = (x1, y1, x2, y2, margin) => ({
  left: Math.min(x1, x2) - margin,
  right: Math.max(x1, x2) + margin,
  top: Math.min(y1, y2) - margin,
  bottom: Math.max(y1, y2) + margin,
});

// The boxes that labels must not cover: points, intervals, and the line.
function occupied(points, front, y, end) {
  const withInterval = points.filter((item) => Number.isFinite(item.low) && Number.isFinite(item.high));
  const bars = withInterval.map((item) => boxAround(item.x, y(item.low), item.x, y(item.high), 2));
  const steps = front.flatMap((item, i) => {
    const next = front[i + 1];
    const horizontal = boxAround(item.x, item.y, next ? next.x : end, item.y, 2);
    return next ? [horizontal, boxAround(next.x, item.y, next.x, next.y, 2)] : [horizontal];
  });
  return [...points.map((item) => boxAround(item.x, item.y, item.x, item.y, 7)), ...bars, ...steps];
}

function Cost(box) {
  const numKnown = (name) => rows.filter((row) => isFiniteNumber(row[name]) && row[name] > 0).length;
  const available = Object.keys(COSTS).filter((name) => numKnown(name) > 1);
  if (!available.length) return;
  let chosen = available[0];
  const status = h("p", { class: "status note" });
  const figure = h("figure");

  function visiblePoints() {
    const all = rows.map(({ name, value, low, high, [chosen]: cost }, row) =>
      ({ row, name, cost: number(cost), value: number(value), low: number(low), high: number(high) }));
    return all.filter(({ row, cost, value }) =>
      visibleRows.has(row) && cost > 0 && Number.isFinite(cost) && Number.isFinite(value));
  }

  // a step function: up to the cost of the next row, the previous row is the best
  function line(front, end) {
    const path = front.map(({ x, y }, i) => (i ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`));
    return s("path", { class: "pareto", d: `${path.join("")}H${end}` });
  }

  function axes(chart, points) {
    const { inner, width } = chart, costs = points.map((item) => item.cost);
    const log = points.length > 1 && Math.max(...costs) / Math.min(...costs) > 8;
    const x = scale(range(costs, { log, margin: 0.12 }), [inner.left, inner.right], { log });
    const scores = points.flatMap(({ low, value, high }) => [low, value, high]);
    const y = scale(range(scores, { margin: 0.08 }), [inner.bottom, inner.top]);
    yAxis(chart, y);
    const label = `${COSTS[chosen].title}${log ? " (log scale)" : ""}`;
    xAxis(chart, x, { label, text: COSTS[chosen].text, count: Math.max(2, Math.floor(width / 150)) });
    chart.svg.append(s("text", { x: 8, y: 12 }, axisTitle(data.metric)));
    return [x, y];
  }

  function draw(width) {
    const points = visiblePoints(), front = paretoFront(points, COSTS[chosen]);
    const height = Math.round(Math.min(420, Math.max(300, width * 0.45)));
    const chart = frame(width, height, `${data.metric.name} against ${COSTS[chosen].title}`, { ...MARGIN, top: 26 });
    const [x, y] = axes(chart, points);
    points.forEach((item) => { [item.x, item.y] = [x(item.cost), y(item.value)]; });
    const end = COSTS[chosen].higherIsCheaper ? chart.inner.left : chart.inner.right;
    if (front.length) chart.svg.append(line(front, end));
    points.forEach((item) => chart.svg.append(...drawPoint(item, y)));
    const occupiedBoxes = occupied(points, front, y, end);
    points.forEach((item) => chart.svg.append(placeLabel(item, occupiedBoxes, chart.inner)));
    figure.replaceChildren(chart.svg);
    describe(front, visibleRows.size - points.length);
  }

  function drawPoint(item, y) {
    const text = `${item.name}: ${fixed(item.value, data.metric.decimals)}, ${COSTS[chosen].text(item.cost)}`;
    const mark = fill(point(item.row, item.x, item.y, 1.35), {}, [s("title", {}, text)]);
    const hasInterval = Number.isFinite(item.low) && Number.isFinite(item.high);
    return hasInterval ? [errorBar(item.row, item.x, y(item.low), y(item.high)), mark] : [mark];
  }

  function describe(front, numMissing) {
    const names = front.flatMap((item, i) => [i ? ", " : "", nameOf(item.row)]);
    status.replaceChildren("On the Pareto front, from the cheapest: ", ...names, front.length ? "." : "none.",
      numMissing ? ` Not in the chart, without a finite score or cost: ${numMissing}.` : "");
  }

  const titles = Object.fromEntries(available.map((name) => [name, COSTS[name].title]));
  const redraw = drawOnResize(figure, draw);
  const controls = h("div", { class: "controls" }, radioGroup("cost", titles, chosen, (name) => { chosen = name; redraw(); }));
  box.append(legend(), controls, figure, status);
}
