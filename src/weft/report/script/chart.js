// Scales, axes and the frame of all charts.

// About `count` round values that cover a range, at least two: a single one does not define a scale.
function linearTicks([low, high], count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const ticks = [];
  for (let i = first; i * step <= high + step * 1e-9; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks.length >= 2 || count > 9 ? ticks : linearTicks([low, high], count + 1);
}

function logTicks([low, high], count) {
  const ticks = [];
  const factors = high / low > 1000 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
  }
  const inside = ticks.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
  return inside.length >= 2 ? inside : linearTicks([low, high], count);
}

// A function from values to pixels; `invert` is its inverse.
function scale([low, high], [from, to], { log = false } = {}) {
  const transform = log ? Math.log : (value) => value;
  const inverse = log ? Math.exp : (value) => value;
  const a = transform(low), b = transform(high);
  const toPixel = (value) => from + ((transform(value) - a) / (b - a)) * (to - from);
  toPixel.invert = (pixel) => inverse(a + ((pixel - from) / (to - from)) * (b - a));
  toPixel.ticks = (count) => (log ? logTicks : linearTicks)([low, high], count);
  toPixel.domain = [low, high];
  return toPixel;
}

// The range of the values with some margin; a single value gets a margin around it.
function range(values, { log = false, margin = 0.05 } = {}) {
  const finite = values.map(number).filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!finite.length) return log ? [1, 10] : [0, 1];
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (log) {
    const factor = low === high ? 2 : (high / low) ** margin;
    return [low / factor, high * factor];
  }
  const padding = (high - low) * margin || Math.abs(high) * 0.1 || 1;
  return [low - padding, high + padding];
}

// As many digits as neighboring ticks differ in.
function tickText(ticks) {
  const distances = ticks.slice(1).map((value, i) => Math.abs(value - ticks[i]));
  const step = distances.length ? Math.min(...distances) : Math.abs(ticks[0]) || 1;
  const decimals = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return (value) => (Math.abs(value) >= 10000 ? short(value) : fixed(value, decimals));
}

const axisTitle = (metric) => `${metric.name} (${metric.better} is better)`;
const MARGIN = { left: 56, right: 14, top: 10, bottom: 42 };

// An empty chart: its SVG element and the area of the plot.
function frame(width, height, title, margin = MARGIN) {
  const inner = { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  return { svg, inner, width, height };
}

function xAxis({ svg, inner }, x, { label, text, count }) {
  const ticks = x.ticks(count || Math.max(3, Math.floor((inner.right - inner.left) / 80)));
  const format = text || tickText(ticks);
  for (const value of ticks) {
    const px = x(value).toFixed(1);
    svg.append(s("path", { class: "grid", d: `M${px} ${inner.top}V${inner.bottom}` }),
      s("text", { x: px, y: inner.bottom + 17, "text-anchor": "middle" }, format(value)));
  }
  svg.append(s("path", { class: "axis", d: `M${inner.left} ${inner.bottom}H${inner.right}` }),
    s("text", { x: (inner.left + inner.right) / 2, y: inner.bottom + 36, "text-anchor": "middle" }, label));
}

function yAxis({ svg, inner }, y, { count } = {}) {
  const ticks = y.ticks(count || Math.max(2, Math.floor((inner.bottom - inner.top) / 45)));
  const format = tickText(ticks);
  for (const value of ticks) {
    const px = y(value).toFixed(1);
    svg.append(s("path", { class: "grid", d: `M${inner.left} ${px}H${inner.right}` }),
      s("text", { x: inner.left - 8, y: px, dy: ".35em", "text-anchor": "end" }, format(value)));
  }
}

// A group that is clipped to the plot.
let numClips = 0;
function clippedGroup({ svg, inner }) {
  const id = `clip${numClips++}`;
  const box = { x: inner.left, y: inner.top - 6, width: inner.right - inner.left + 6, height: inner.bottom - inner.top + 6 };
  const group = s("g", { "clip-path": `url(#${id})` });
  svg.append(s("clipPath", { id }, s("rect", box)), group);
  return group;
}

// An interval as an error bar, vertical or horizontal.
function errorBar(row, position, from, to, vertical = true) {
  const [a, b, c] = [position, from, to].map((value) => value.toFixed(1));
  const d = vertical ? `M${a} ${b}V${c}M${a - 3} ${b}h6M${a - 3} ${c}h6` : `M${b} ${a}H${c}M${b} ${a - 3}v6M${c} ${a - 3}v6`;
  return s("path", { class: `error ${color(row)}`, d });
}

// Draw now, and again when the size of the chart changes.
const redraws = [];
function drawOnResize(box, draw) {
  const redraw = () => {
    const width = Math.floor(box.clientWidth);
    if (width > 0) draw(width);
  };
  redraws.push(redraw);
  let lastWidth = 0;
  new ResizeObserver(() => {
    if (Math.floor(box.clientWidth) === lastWidth) return;
    lastWidth = Math.floor(box.clientWidth);
    redraw();
  }).observe(box);
  return redraw;
}
