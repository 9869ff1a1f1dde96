// Scales, axes and the frame of all charts.

// Round values that cover a range, about `count` of them and at least two: one alone does not define a scale.
function linearTicks([low, high], count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const ticks = [];
  for (let at = first; at * step <= high + step * 1e-9; at += 1) ticks.push(Number((at * step).toPrecision(12)));
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

// From values to pixels and back.
function scale([low, high], [from, to], { log = false } = {}) {
  const bent = log ? Math.log : (value) => value;
  const straight = log ? Math.exp : (value) => value;
  const a = bent(low), b = bent(high);
  const place = (value) => from + ((bent(value) - a) / (b - a)) * (to - from);
  place.back = (pixel) => straight(a + ((pixel - from) / (to - from)) * (b - a));
  place.ticks = (count) => (log ? logTicks : linearTicks)([low, high], count);
  place.domain = [low, high];
  return place;
}

// The range of the values with some margin; a single value gets a margin around it.
function range(values, { log = false, room = 0.05 } = {}) {
  const known = values.map(number).filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return log ? [1, 10] : [0, 1];
  let low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  if (log) {
    const factor = low === high ? 2 : (high / low) ** room;
    return [low / factor, high * factor];
  }
  const space = (high - low) * room || Math.abs(high) * 0.1 || 1;
  return [low - space, high + space];
}

// As many digits as neighboring ticks differ in.
function tickText(ticks) {
  const apart = ticks.slice(1).map((value, at) => Math.abs(value - ticks[at]));
  const step = apart.length ? Math.min(...apart) : Math.abs(ticks[0]) || 1;
  const places = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return (value) => (Math.abs(value) >= 10000 ? short(value) : fixed(value, places));
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
  const write = text || tickText(ticks);
  for (const value of ticks) {
    const at = x(value).toFixed(1);
    svg.append(s("path", { class: "grid", d: `M${at} ${inner.top}V${inner.bottom}` }),
      s("text", { x: at, y: inner.bottom + 17, "text-anchor": "middle" }, write(value)));
  }
  svg.append(s("path", { class: "axis", d: `M${inner.left} ${inner.bottom}H${inner.right}` }),
    s("text", { x: (inner.left + inner.right) / 2, y: inner.bottom + 36, "text-anchor": "middle" }, label));
}

function yAxis({ svg, inner }, y, { count } = {}) {
  const ticks = y.ticks(count || Math.max(2, Math.floor((inner.bottom - inner.top) / 45)));
  const write = tickText(ticks);
  for (const value of ticks) {
    const at = y(value).toFixed(1);
    svg.append(s("path", { class: "grid", d: `M${inner.left} ${at}H${inner.right}` }),
      s("text", { x: inner.left - 8, y: at, dy: ".35em", "text-anchor": "end" }, write(value)));
  }
}

// A group that is clipped to the plot.
let clips = 0;
function clipped({ svg, inner }) {
  const id = `clip${clips++}`;
  const box = { x: inner.left, y: inner.top - 6, width: inner.right - inner.left + 6, height: inner.bottom - inner.top + 6 };
  const group = s("g", { "clip-path": `url(#${id})` });
  svg.append(s("clipPath", { id }, s("rect", box)), group);
  return group;
}

// An interval as an error bar, vertical or horizontal.
function errorBar(row, at, from, to, upright = true) {
  const [a, b, c] = [at, from, to].map((value) => value.toFixed(1));
  const d = upright ? `M${a} ${b}V${c}M${a - 3} ${b}h6M${a - 3} ${c}h6` : `M${b} ${a}H${c}M${b} ${a - 3}v6M${c} ${a - 3}v6`;
  return s("path", { class: `error ${color(row)}`, d });
}

// Draw now, and again when the size of the chart changes.
const drawings = [];
function keepDrawn(box, draw) {
  const again = () => {
    const width = Math.floor(box.clientWidth);
    if (width > 0) draw(width);
  };
  drawings.push(again);
  let known = 0;
  new ResizeObserver(() => {
    if (Math.floor(box.clientWidth) === known) return;
    known = Math.floor(box.clientWidth);
    again();
  }).observe(box);
  return again;
}
