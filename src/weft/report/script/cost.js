// Score against cost, with the Pareto front.

const COSTS = {
  num_parameters: { title: "parameters", text: short },
  seconds: { title: "training time", text: duration },
  model_bytes: { title: "size on disk", text: size },
  peak_memory: { title: "peak memory", text: size },
  inference_rate: { title: "inference speed", text: (value) => `${short(value)} ${data.inference_unit}`, more: true },
};

const better = (a, b) => (upwards ? a > b : a < b);

// The Pareto front: rows that no other row beats in both cost and score. From the cheapest on.
function pareto(places, { more }) {
  const cheapest = [...places].sort((a, b) =>
    (more ? b.cost - a.cost : a.cost - b.cost) || (better(a.value, b.value) ? -1 : 1));
  const kept = [];
  for (const place of cheapest) {
    if (!kept.length || better(place.value, kept[kept.length - 1].value)) kept.push(place);
  }
  return kept;
}

const SPOTS = [
  [10, 4, "start"], [-10, 4, "end"], [10, 18, "start"], [-10, -10, "end"], [10, -10, "start"], [-10, 18, "end"],
  [0, -14, "middle"], [0, 22, "middle"],
];

const cover = (a, b) =>
  Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left))
  * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));

// The name of a point, placed where it covers as little as possible and stays inside.
function label(place, taken, inner) {
  const width = 7.2 * place.name.length + 4;
  const boxes = SPOTS.map(([dx, dy, anchor]) => {
    const left = place.x + dx - { start: 0, middle: width / 2, end: width }[anchor];
    return { dx, dy, anchor, left, right: left + width, top: place.y + dy - 12, bottom: place.y + dy + 4 };
  });
  const outside = (box) => Math.max(0, inner.left - box.left, box.right - inner.right);
  const cost = (box) => taken.reduce((sum, other) => sum + cover(box, other), 0) + 40 * outside(box);
  const best = boxes.reduce((a, b) => (cost(b) < cost(a) ? b : a));
  taken.push(best);
  return s("text", { class: "named", x: place.x + best.dx, y: place.y + best.dy, "text-anchor": best.anchor }, place.name);
}

const around = (x1, y1, x2, y2, room) => ({
  left: Math.min(x1, x2) - room, right: Math.max(x1, x2) + room, top: Math.min(y1, y2) - room, bottom: Math.max(y1, y2) + room,
});

// What names must not cover: points, intervals, and the line.
function occupied(places, kept, y, end) {
  const bounded = places.filter((place) => Number.isFinite(place.low) && Number.isFinite(place.high));
  const bars = bounded.map((place) => around(place.x, y(place.low), place.x, y(place.high), 2));
  const steps = kept.flatMap((place, at) => {
    const next = kept[at + 1];
    const across = around(place.x, place.y, next ? next.x : end, place.y, 2);
    return next ? [across, around(next.x, place.y, next.x, next.y, 2)] : [across];
  });
  return [...places.map((place) => around(place.x, place.y, place.x, place.y, 7)), ...bars, ...steps];
}

function Cost(box) {
  const costs = (name) => rows.filter((row) => drawable(row[name]) && row[name] > 0).length;
  const known = Object.keys(COSTS).filter((name) => costs(name) > 1);
  if (!known.length) return;
  let chosen = known[0];
  const told = h("p", { class: "told note" });
  const figure = h("figure");

  function placed() {
    const all = rows.map(({ name, value, low, high, [chosen]: cost }, row) =>
      ({ row, name, cost: number(cost), value: number(value), low: number(low), high: number(high) }));
    return all.filter(({ row, cost, value }) => shown.has(row) && cost > 0 && Number.isFinite(cost) && Number.isFinite(value));
  }

  // a step function: up to the cost of the next row, the row before is the best
  function line(kept, end) {
    const path = kept.map(({ x, y }, at) => (at ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`));
    return s("path", { class: "pareto", d: `${path.join("")}H${end}` });
  }

  function axes(chart, places) {
    const { inner, width } = chart, costs = places.map((place) => place.cost);
    const log = places.length > 1 && Math.max(...costs) / Math.min(...costs) > 8;
    const x = scale(range(costs, { log, room: 0.12 }), [inner.left, inner.right], { log });
    const scores = places.flatMap(({ low, value, high }) => [low, value, high]);
    const y = scale(range(scores, { room: 0.08 }), [inner.bottom, inner.top]);
    yAxis(chart, y);
    const label = `${COSTS[chosen].title}${log ? " (log scale)" : ""}`;
    xAxis(chart, x, { label, text: COSTS[chosen].text, count: Math.max(2, Math.floor(width / 150)) });
    chart.svg.append(s("text", { x: 8, y: 12 }, axisTitle(data.metric)));
    return [x, y];
  }

  function draw(width) {
    const places = placed(), kept = pareto(places, COSTS[chosen]);
    const height = Math.round(Math.min(420, Math.max(300, width * 0.45)));
    const chart = frame(width, height, `${data.metric.name} against ${COSTS[chosen].title}`, { ...MARGIN, top: 26 });
    const [x, y] = axes(chart, places);
    places.forEach((place) => { [place.x, place.y] = [x(place.cost), y(place.value)]; });
    const end = COSTS[chosen].more ? chart.inner.left : chart.inner.right;
    if (kept.length) chart.svg.append(line(kept, end));
    places.forEach((place) => chart.svg.append(...drawPoint(place, y)));
    const taken = occupied(places, kept, y, end);
    places.forEach((place) => chart.svg.append(label(place, taken, chart.inner)));
    figure.replaceChildren(chart.svg);
    tell(kept, shown.size - places.length);
  }

  function drawPoint(place, y) {
    const text = `${place.name}: ${fixed(place.value, data.metric.decimals)}, ${COSTS[chosen].text(place.cost)}`;
    const drawn = fill(point(place.row, place.x, place.y, 1.35), {}, [s("title", {}, text)]);
    const known = Number.isFinite(place.low) && Number.isFinite(place.high);
    return known ? [errorBar(place.row, place.x, y(place.low), y(place.high)), drawn] : [drawn];
  }

  function tell(kept, gone) {
    const names = kept.flatMap((place, at) => [at ? ", " : "", named(place.row)]);
    told.replaceChildren("On the Pareto front, from the cheapest: ", ...names, kept.length ? "." : "none.",
      gone ? ` Not in the chart, without a finite score or cost: ${gone}.` : "");
  }

  const titles = Object.fromEntries(known.map((name) => [name, COSTS[name].title]));
  const again = keepDrawn(figure, draw);
  const controls = h("div", { class: "controls" }, choice("cost", titles, chosen, (name) => { chosen = name; again(); }));
  box.append(legend(), controls, figure, told);
}
