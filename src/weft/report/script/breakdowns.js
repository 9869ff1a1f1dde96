// Scores by length, frequency or label, with intervals and the number of items.

const ordered = (breakdown) => /^(input length|training frequency|attractors)/.test(breakdown.by);

function breakdownRange(breakdown) {
  const parts = [breakdown.values, breakdown.low, breakdown.high];
  return range(parts.flatMap((part) => [...shown].flatMap((row) => part[row] || [])));
}

// Rows are shifted, so that their intervals do not overlap.
const offset = (order, count, room) => (count > 1 ? (order / (count - 1) - 0.5) * room : 0);

function spot(breakdown, row, at) {
  const [value, low, high] = ["values", "low", "high"].map((part) => number((breakdown[part][row] || [])[at]));
  const bounds = Number.isFinite(low) ? ` [${digits(low)}, ${digits(high)}]` : "";
  const count = `${fixed(breakdown.counts[at], 0)} ${breakdown.unit}`;
  const fractions = ["precision", "recall"].map((part) => [part, number((breakdown[part][row] || [])[at])])
    .filter(([, value]) => Number.isFinite(value)).map(([part, value]) => `, ${part} ${fixed(value, 1)}`).join("");
  const text = `${rows[row].name}, ${breakdown.bins[at]}: ${digits(value)}${bounds}${fractions}, ${count}`;
  return { at, value, low, high, text, bounded: Number.isFinite(low) && Number.isFinite(high) };
}

// ---- ordered bins: lines

const STRIP = 46; // height of the bars that show the number of items

function binFrame(breakdown, width) {
  const maxLength = Math.max(...breakdown.bins.map((bin) => bin.length));
  const tilted = maxLength * 7 > (width - 70) / breakdown.bins.length;
  const foot = tilted ? Math.min(90, 18 + maxLength * 5) : 22;
  const margin = { ...MARGIN, top: 26, bottom: STRIP + foot + 24 };
  const title = `${breakdown.metric.name} by ${breakdown.by}`;
  const chart = frame(width, (width >= 560 ? 340 : 280) + STRIP + foot, title, margin);
  const step = (chart.inner.right - chart.inner.left) / breakdown.bins.length;
  return { ...chart, tilted, foot, step, middle: (at) => chart.inner.left + (at + 0.5) * step };
}

function binLabels({ svg, inner, tilted, foot, step, middle }, breakdown) {
  const base = inner.bottom + foot + STRIP - 2, largest = Math.max(...breakdown.counts, 1);
  breakdown.bins.forEach((bin, at) => {
    const high = (STRIP - 18) * (breakdown.counts[at] / largest);
    const place = tilted
      ? { transform: `translate(${middle(at) + 4} ${inner.bottom + 14}) rotate(-35)`, "text-anchor": "end" }
      : { x: middle(at), y: inner.bottom + 16, "text-anchor": "middle" };
    svg.append(s("text", place, bin),
      s("rect", { class: "count", x: middle(at) - step * 0.3, y: base - high, width: step * 0.6, height: Math.max(1, high) }),
      s("text", { x: middle(at), y: base - high - 4, "text-anchor": "middle" }, short(breakdown.counts[at])));
  });
  svg.append(s("text", { x: inner.left - 8, y: base - 2, "text-anchor": "end" }, breakdown.unit),
    s("text", { x: (inner.left + inner.right) / 2, y: base + 18, "text-anchor": "middle" }, breakdown.by));
}

function byBins(breakdown, width) {
  const chart = binFrame(breakdown, width), { svg, inner, step, middle } = chart;
  const y = scale(breakdownRange(breakdown), [inner.bottom, inner.top]);
  yAxis(chart, y);
  svg.append(s("text", { x: 8, y: 12 }, axisTitle(breakdown.metric)));
  svg.append(s("path", { class: "axis", d: `M${inner.left} ${inner.bottom}H${inner.right}` }));
  binLabels(chart, breakdown);
  const room = Math.min(step * 0.35, 10 * (shown.size - 1));
  [...shown].sort((a, b) => a - b).forEach((row, order) =>
    drawLine(svg, breakdown, row, (at) => middle(at) + offset(order, shown.size, room), y));
  return svg;
}

function drawLine(svg, breakdown, row, x, y) {
  const spots = breakdown.bins.map((_, at) => spot(breakdown, row, at));
  const known = spots.filter(({ value }) => Number.isFinite(value));
  // the line breaks where a value is missing
  const d = known.map(({ at, value }, place) => {
    const next = place && known[place - 1].at === at - 1;
    return `${next ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  svg.append(s("path", { class: `line ${color(row)}`, d: d.join(""), "stroke-dasharray": dash(row) }));
  for (const { at, text } of spots.filter(({ value }) => Math.abs(value) === Infinity)) {
    const place = { class: `beyond ${color(row)}`, x: x(at), y: y(y.domain[1]) + 12, "text-anchor": "middle" };
    svg.append(s("text", place, "∞", s("title", {}, text)));
  }
  for (const { at, value, low, high, text, bounded } of known) {
    if (bounded) svg.append(errorBar(row, x(at), y(low), y(high)));
    svg.append(fill(point(row, x(at), y(value)), {}, [s("title", {}, text)]));
  }
}

// ---- labels have no order, so no line joins them: one row of the chart for each

function byLabels(breakdown, width) {
  const bins = breakdown.bins, high = Math.max(22, 6 * shown.size + 10);
  const left = Math.min(width * 0.34, 20 + 7 * Math.max(...bins.map((bin) => bin.length + 1)));
  const margin = { ...MARGIN, left, right: 56, top: 26 };
  const chart = frame(width, bins.length * high + 74, `${breakdown.metric.name} by ${breakdown.by}`, margin);
  const { svg, inner } = chart;
  const x = scale(breakdownRange(breakdown), [inner.left, inner.right]);
  const middle = (at) => inner.top + (at + 0.5) * high;
  xAxis(chart, x, { label: axisTitle(breakdown.metric) });
  svg.append(s("text", { x: inner.right + 48, y: 14, "text-anchor": "end" }, breakdown.unit));
  bins.forEach((bin, at) => svg.append(...labelLine(breakdown, at, inner, middle(at), high)));
  [...shown].sort((a, b) => a - b).forEach((row, order) => bins.forEach((_, at) => {
    const { value, low, high: top, text, bounded } = spot(breakdown, row, at);
    if (!Number.isFinite(value)) return;
    const y = middle(at) + offset(order, shown.size, high - 14);
    if (bounded) svg.append(errorBar(row, y, x(low), x(top), false));
    svg.append(fill(point(row, x(value), y, 0.9), {}, [s("title", {}, text)]));
  }));
  return svg;
}

function labelLine(breakdown, at, inner, middle, high) {
  const bin = breakdown.bins[at], maxChars = Math.floor((inner.left - 12) / 6.5);
  const text = bin.length > maxChars ? `${bin.slice(0, maxChars - 1)}…` : bin;
  const place = { y: middle, dy: ".35em", "text-anchor": "end" };
  return [
    s("path", { class: "grid", d: `M${inner.left} ${middle + high / 2}H${inner.right + 48}` }),
    s("text", { x: inner.left - 8, ...place }, text, s("title", {}, bin)),
    s("text", { x: inner.right + 48, ...place }, fixed(breakdown.counts[at], 0)),
  ];
}

function Breakdown(box) {
  const breakdown = data.breakdowns[Number(box.dataset.place)];
  const figure = h("figure"), draw = ordered(breakdown) ? byBins : byLabels;
  box.append(legend(), figure);
  keepDrawn(figure, (width) => figure.replaceChildren(draw(breakdown, width)));
}
