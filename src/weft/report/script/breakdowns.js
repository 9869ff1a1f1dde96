// Scores by length, frequency or label, with intervals and the number of items.

const hasOrderedBins = (breakdown) => /^(input length|training frequency|attractors)/.test(breakdown.by);

function breakdownRange(breakdown) {
  const parts = [breakdown.values, breakdown.low, breakdown.high];
  return range(parts.flatMap((part) => [...visibleRows].flatMap((row) => part[row] || [])));
}

// The shift of a row, so that the intervals of rows do not overlap.
const offset = (index, count, spread) => (count > 1 ? (index / (count - 1) - 0.5) * spread : 0);

function binScore(breakdown, row, bin) {
  const [value, low, high] = ["values", "low", "high"].map((part) => number((breakdown[part][row] || [])[bin]));
  const bounds = Number.isFinite(low) ? ` [${digits(low)}, ${digits(high)}]` : "";
  const count = `${fixed(breakdown.counts[bin], 0)} ${breakdown.unit}`;
  const fractions = ["precision", "recall"].map((part) => [part, number((breakdown[part][row] || [])[bin])])
    .filter(([, value]) => Number.isFinite(value)).map(([part, value]) => `, ${part} ${fixed(value, 1)}`).join("");
  const text = `${rows[row].name}, ${breakdown.bins[bin]}: ${digits(value)}${bounds}${fractions}, ${count}`;
  return { bin, value, low, high, text, hasInterval: Number.isFinite(low) && Number.isFinite(high) };
}

// ---- ordered bins: lines

const COUNTS_HEIGHT = 46; // height of the bars that show the number of items

function binFrame(breakdown, width) {
  const maxLength = Math.max(...breakdown.bins.map((bin) => bin.length));
  const tilted = maxLength * 7 > (width - 70) / breakdown.bins.length;
  const labelHeight = tilted ? Math.min(90, 18 + maxLength * 5) : 22;
  const margin = { ...MARGIN, top: 26, bottom: COUNTS_HEIGHT + labelHeight + 24 };
  const title = `${breakdown.metric.name} by ${breakdown.by}`;
  const chart = frame(width, (width >= 560 ? 340 : 280) + COUNTS_HEIGHT + labelHeight, title, margin);
  const step = (chart.inner.right - chart.inner.left) / breakdown.bins.length;
  return { ...chart, tilted, labelHeight, step, middle: (bin) => chart.inner.left + (bin + 0.5) * step };
}

function binLabels({ svg, inner, tilted, labelHeight, step, middle }, breakdown) {
  const bottom = inner.bottom + labelHeight + COUNTS_HEIGHT - 2, largest = Math.max(...breakdown.counts, 1);
  breakdown.bins.forEach((label, bin) => {
    const height = (COUNTS_HEIGHT - 18) * (breakdown.counts[bin] / largest);
    const bar = { x: middle(bin) - step * 0.3, y: bottom - height, width: step * 0.6, height: Math.max(1, height) };
    const attributes = tilted
      ? { transform: `translate(${middle(bin) + 4} ${inner.bottom + 14}) rotate(-35)`, "text-anchor": "end" }
      : { x: middle(bin), y: inner.bottom + 16, "text-anchor": "middle" };
    svg.append(s("text", attributes, label),
      s("rect", { class: "count", ...bar }),
      s("text", { x: middle(bin), y: bottom - height - 4, "text-anchor": "middle" }, short(breakdown.counts[bin])));
  });
  svg.append(s("text", { x: inner.left - 8, y: bottom - 2, "text-anchor": "end" }, breakdown.unit),
    s("text", { x: (inner.left + inner.right) / 2, y: bottom + 18, "text-anchor": "middle" }, breakdown.by));
}

function drawBins(breakdown, width) {
  const chart = binFrame(breakdown, width), { svg, inner, step, middle } = chart;
  const y = scale(breakdownRange(breakdown), [inner.bottom, inner.top]);
  yAxis(chart, y);
  svg.append(s("text", { x: 8, y: 12 }, axisTitle(breakdown.metric)));
  svg.append(s("path", { class: "axis", d: `M${inner.left} ${inner.bottom}H${inner.right}` }));
  binLabels(chart, breakdown);
  const spread = Math.min(step * 0.35, 10 * (visibleRows.size - 1));
  [...visibleRows].sort((a, b) => a - b).forEach((row, index) =>
    drawLine(svg, breakdown, row, (bin) => middle(bin) + offset(index, visibleRows.size, spread), y));
  return svg;
}

function drawLine(svg, breakdown, row, x, y) {
  const scores = breakdown.bins.map((_, bin) => binScore(breakdown, row, bin));
  const finite = scores.filter(({ value }) => Number.isFinite(value));
  // the line breaks where a value is missing
  const d = finite.map(({ bin, value }, i) => {
    const isAdjacent = i && finite[i - 1].bin === bin - 1;
    return `${isAdjacent ? "L" : "M"}${x(bin).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  svg.append(s("path", { class: `line ${color(row)}`, d: d.join(""), "stroke-dasharray": dash(row) }));
  for (const { bin, text } of scores.filter(({ value }) => Math.abs(value) === Infinity)) {
    const attributes = { class: `infinite ${color(row)}`, x: x(bin), y: y(y.domain[1]) + 12, "text-anchor": "middle" };
    svg.append(s("text", attributes, "∞", s("title", {}, text)));
  }
  for (const { bin, value, low, high, text, hasInterval } of finite) {
    if (hasInterval) svg.append(errorBar(row, x(bin), y(low), y(high)));
    svg.append(fill(point(row, x(bin), y(value)), {}, [s("title", {}, text)]));
  }
}

// ---- labels: one row of the chart per label, without lines, since labels have no order

function drawLabels(breakdown, width) {
  const bins = breakdown.bins, rowHeight = Math.max(22, 6 * visibleRows.size + 10);
  const left = Math.min(width * 0.34, 20 + 7 * Math.max(...bins.map((bin) => bin.length + 1)));
  const margin = { ...MARGIN, left, right: 56, top: 26 };
  const chart = frame(width, bins.length * rowHeight + 74, `${breakdown.metric.name} by ${breakdown.by}`, margin);
  const { svg, inner } = chart;
  const x = scale(breakdownRange(breakdown), [inner.left, inner.right]);
  const middle = (bin) => inner.top + (bin + 0.5) * rowHeight;
  xAxis(chart, x, { label: axisTitle(breakdown.metric) });
  svg.append(s("text", { x: inner.right + 48, y: 14, "text-anchor": "end" }, breakdown.unit));
  bins.forEach((label, bin) => svg.append(...labelLine(breakdown, bin, inner, middle(bin), rowHeight)));
  [...visibleRows].sort((a, b) => a - b).forEach((row, index) => bins.forEach((_, bin) => {
    const { value, low, high, text, hasInterval } = binScore(breakdown, row, bin);
    if (!Number.isFinite(value)) return;
    const y = middle(bin) + offset(index, visibleRows.size, rowHeight - 14);
    if (hasInterval) svg.append(errorBar(row, y, x(low), x(high), false));
    svg.append(fill(point(row, x(value), y, 0.9), {}, [s("title", {}, text)]));
  }));
  return svg;
}

function labelLine(breakdown, bin, inner, middle, rowHeight) {
  const label = breakdown.bins[bin], maxChars = Math.floor((inner.left - 12) / 6.5);
  const text = label.length > maxChars ? `${label.slice(0, maxChars - 1)}…` : label;
  const attributes = { y: middle, dy: ".35em", "text-anchor": "end" };
  return [
    s("path", { class: "grid", d: `M${inner.left} ${middle + rowHeight / 2}H${inner.right + 48}` }),
    s("text", { x: inner.left - 8, ...attributes }, text, s("title", {}, label)),
    s("text", { x: inner.right + 48, ...attributes }, fixed(breakdown.counts[bin], 0)),
  ];
}

function Breakdown(box) {
  const breakdown = data.breakdowns[Number(box.dataset.index)];
  const figure = h("figure"), draw = hasOrderedBins(breakdown) ? drawBins : drawLabels;
  box.append(legend(), figure);
  drawOnResize(figure, (width) => figure.replaceChildren(draw(breakdown, width)));
}
