// Learning curves: losses, gradient norms and learning rates side by side, with a common zoom along the x axis.

const MAX_MARKED_POINTS = 40; // longer curves are lines without marks

const UNITS = {
  step: { title: "steps", text: null },
  tokens: { title: "tokens", text: short },
  seconds: { title: "training time", text: duration },
};

function Curves(box) {
  const view = { unit: "step", log: false, smooth: true, x: null, y: {} };
  const { train, valid } = data.curve_metrics;
  const titles = {
    train: train ? `Training ${train.name}` : "Training loss",
    valid: `Validation ${axisTitle(valid)}`,
    grad_norm: "Gradient norm before clipping (thin: maximum, dashed: max_grad_norm)",
    learning_rate: "Learning rate",
  };
  const isLog = (part) => view.log || part.startsWith("grad_norm");
  const parts = Object.keys(titles).filter((part) => data.curves.some((curve) => curve[part].value.length));
  const panels = Object.fromEntries(parts.map((part) => [part, panel(titles[part])]));
  const reset = h("button", { type: "button", class: "reset", disabled: true, onclick: () => resetZoom() }, "Reset zoom");
  const redraw = () => parts.forEach((part) => draw(part, Math.floor(panels[part].plot.clientWidth)));

  const isLogged = (unit) => data.curves.some((curve) => parts.some((part) => curve[part][unit].some(isFiniteNumber)));
  const units = Object.keys(UNITS).filter(isLogged).map((unit) => [unit, UNITS[unit].title]);

  function resetZoom() {
    [view.x, view.y] = [null, {}];
    redraw();
  }

  // The points of a curve in the chosen unit, without those that have no logarithm.
  function points(curve, part) {
    const { value, [view.unit]: xs } = curve[part];
    return value.map((y, index) => [number(xs[index]), number(y)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!isLog(part) || y > 0));
  }

  function visibleCurves(part) {
    const curves = data.curves.filter((curve) => visibleRows.has(curve.row));
    return curves.map((curve) => ({ ...curve, points: points(curve, part) }));
  }

  function ranges(curves, part) {
    // all panels share the x axis and zoom together
    const all = parts.flatMap((other) => visibleCurves(other)).flatMap((curve) => curve.points.map(([x]) => x));
    const xs = view.x || range(all, { margin: 0.01 });
    const inside = curves.flatMap((curve) => curve.points).filter(([x]) => x >= xs[0] && x <= xs[1]).map(([, y]) => y);
    return [xs, view.y[part] || range([...inside, ...limits(part)], { log: isLog(part) })];
  }

  // max_grad_norm of the visible runs.
  function limits(part) {
    if (part !== "grad_norm") return [];
    const norms = data.curves.filter((curve) => visibleRows.has(curve.row)).map((curve) => number(curve.max_grad_norm));
    return [...new Set(norms.filter(Number.isFinite))];
  }

  // Whether the running mean of a noisy curve is drawn over its values.
  const smoothed = (curve, part) => view.smooth && curve[part].smooth.length > 0;

  function meanPoints(curve, part) {
    const { smooth, [view.unit]: xs } = curve[part];
    return smooth.map((y, index) => [number(xs[index]), number(y)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!isLog(part) || y > 0));
  }

  const path = (points, x, y) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  const rawLine = (curve, x, y) => s("path", { class: `line raw ${color(curve.row)}`, d: path(curve.points, x, y) });

  // The maximum norms, as thin lines.
  function maximumLine(curve, x, y) {
    const style = smoothed(curve, "grad_norm") ? "raw" : "thin";
    return s("path", { class: `line ${style} ${color(curve.row)}`, d: path(points(curve, "grad_norm_max"), x, y) });
  }

  function line(curve, part, x, y, inner) {
    const seeds = data.curves.filter((other) => other.row === curve.row).map((other) => other.seed);
    const style = curve.seed === seeds[0] ? "line" : "line thin";
    // a model fitted in one pass has one point, drawn as a horizontal line
    const isSinglePoint = curve.points.length === 1;
    const d = isSinglePoint ? `M${inner.left} ${y(curve.points[0][1]).toFixed(1)}H${inner.right}`
      : path(smoothed(curve, part) ? meanPoints(curve, part) : curve.points, x, y);
    const classes = `${style} ${color(curve.row)}${isSinglePoint ? " baseline" : ""}`;
    const marks = [s("path", { class: classes, d, "stroke-dasharray": dash(curve.row) })];
    const inRange = curve.points.filter(([a]) => a >= x.domain[0] && a <= x.domain[1]);
    if (inRange.length > MAX_MARKED_POINTS || smoothed(curve, part)) return marks;
    return [...marks, ...inRange.map(([a, b]) => point(curve.row, x(a), y(b), 0.8))];
  }

  function draw(part, width) {
    if (width <= 0) return;
    const curves = visibleCurves(part).filter((curve) => curve.points.length);
    const maxima = part === "grad_norm" ? visibleCurves("grad_norm_max") : [];
    const [xs, ys] = ranges([...curves, ...maxima], part);
    const height = Math.round(Math.min(340, Math.max(240, width * 0.62)));
    const chart = frame(width, height, `${titles[part]} over ${UNITS[view.unit].title}`);
    const { svg, inner } = chart;
    const x = scale(xs, [inner.left, inner.right]), y = scale(ys, [inner.bottom, inner.top], { log: isLog(part) });
    yAxis(chart, y);
    xAxis(chart, x, { label: UNITS[view.unit].title, text: UNITS[view.unit].text });
    const group = clippedGroup(chart);
    const levels = limits(part).map((value) => `M${inner.left} ${y(value).toFixed(1)}H${inner.right}`);
    levels.forEach((d) => group.append(s("path", { class: "limit", d })));
    if (part === "grad_norm") curves.forEach((curve) => group.append(maximumLine(curve, x, y)));
    curves.filter((curve) => smoothed(curve, part)).forEach((curve) => group.append(rawLine(curve, x, y)));
    curves.forEach((curve) => group.append(...line(curve, part, x, y, inner)));
    enableZoom(svg, inner, x, y, part);
    enableTooltip(panels[part], chart, curves, x, y);
    panels[part].plot.replaceChildren(svg);
    reset.disabled = !(view.x || Object.values(view.y).some(Boolean));
  }

  function enableZoom(svg, inner, x, y, part) {
    svg.classList.add("zoomable");
    fill(svg, { tabindex: "0" }, []);
    onDrag(svg, inner, ([left, right], height) => {
      view.x = [x.invert(left), x.invert(right)];
      view.y[part] = height ? [y.invert(height[1]), y.invert(height[0])] : null;
      redraw();
    });
    svg.addEventListener("dblclick", resetZoom);
    svg.addEventListener("keydown", (event) => onKey(event, x, part));
  }

  function onKey(event, x, part) {
    const [low, high] = x.domain, span = high - low;
    const moves = {
      "+": [low + span / 4, high - span / 4], "=": [low + span / 4, high - span / 4], "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 5, high - span / 5], ArrowRight: [low + span / 5, high + span / 5],
    };
    if (event.key === "Escape") resetZoom();
    else if (moves[event.key]) [view.x, view.y] = [moves[event.key], {}];
    else return;
    event.preventDefault();
    redraw();
    panels[part].plot.firstElementChild.focus();
  }

  function formatX(value) {
    return { step: `step ${fixed(value, 0)}`, tokens: `${short(value)} tokens`, seconds: duration(value) }[view.unit];
  }

  // A tooltip for the point nearest to the pointer.
  function enableTooltip({ plot, tip }, { svg, width }, curves, x, y) {
    const halo = s("circle", { r: 7, visibility: "hidden" });
    svg.append(halo);
    tip.hidden = true;
    const candidates = curves.flatMap((curve) =>
      curve.points.map((point) => ({ curve, point, pixel: [x(point[0]), y(point[1])] })));
    const hide = () => { tip.hidden = true; halo.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const hit = event.buttons ? null : nearest(candidates, pointerPosition(svg, event), 30);
      if (!hit) return hide();
      const { curve, point: [xValue, value], pixel: center } = hit;
      fill(halo, { class: `halo ${color(curve.row)}`, cx: center[0], cy: center[1], visibility: "visible" }, []);
      tip.hidden = false;
      tip.replaceChildren(nameOf(curve.row), `, seed ${curve.seed}`, h("br"), `${formatX(xValue)}: ${digits(value, 4)}`);
      tip.style.top = `${plot.offsetTop + center[1] + 12}px`;
      tip.style.left = `${Math.min(center[0] + 12, width - tip.offsetWidth - 4)}px`;
      return undefined;
    });
  }

  function setUnit(unit) {
    [view.unit, view.x] = [unit, null];
    redraw();
  }

  function setLogScale(event) {
    [view.log, view.y] = [event.target.checked, {}];
    redraw();
  }

  function setSmoothing(event) {
    view.smooth = event.target.checked;
    redraw();
  }

  const hasSmoothed = data.curves.some((curve) => parts.some((part) => curve[part].smooth.length));
  const smoothBox = { type: "checkbox", class: "smooth", checked: true, onchange: setSmoothing };
  const controls = h("div", { class: "controls" },
    units.length > 1 ? radioGroup("x axis", Object.fromEntries(units), view.unit, setUnit) : null,
    h("label", {}, h("input", { type: "checkbox", class: "log", onchange: setLogScale }), " log scale"),
    hasSmoothed ? h("label", {}, h("input", smoothBox), " smoothed") : null,
    reset);
  box.append(legend(), controls, h("div", { class: "panels" }, Object.values(panels).map(({ figure }) => figure)));
  drawOnResize(box, redraw);
}

function panel(title) {
  const plot = h("div"), tip = h("div", { class: "tip", hidden: true });
  return { plot, tip, figure: h("figure", {}, h("figcaption", {}, title), plot, tip) };
}

// The candidate nearest to a position, within a radius.
function nearest(candidates, [x, y], radius) {
  let closest = null, minDistance = radius;
  for (const candidate of candidates) {
    const distance = Math.hypot(candidate.pixel[0] - x, candidate.pixel[1] - y);
    if (distance < minDistance) [closest, minDistance] = [candidate, distance];
  }
  return closest;
}

// The position of the pointer in SVG units.
function pointerPosition(svg, event) {
  const box = svg.getBoundingClientRect();
  const view = svg.viewBox.baseVal;
  return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
}

// Calls `done` with the region selected by dragging. It has no height if it is flat, or if selected by touch, which scrolls.
function onDrag(svg, inner, done) {
  let start = null, selection = null;
  const clamp = ([x, y]) => [Math.min(inner.right, Math.max(inner.left, x)), Math.min(inner.bottom, Math.max(inner.top, y))];
  const corners = (event) => {
    const end = clamp(pointerPosition(svg, event));
    const [xs, ys] = [0, 1].map((axis) => [start[axis], end[axis]].sort((a, b) => a - b));
    const hasHeight = event.pointerType !== "touch" && ys[1] - ys[0] > 15;
    return [xs, hasHeight ? ys : null];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = clamp(pointerPosition(svg, event));
    svg.setPointerCapture(event.pointerId);
    selection = s("rect", { class: "select" });
    svg.append(selection);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [xs, ys] = corners(event);
    const [top, bottom] = ys || [inner.top, inner.bottom];
    fill(selection, { x: xs[0], y: top, width: xs[1] - xs[0], height: bottom - top }, []);
  });
  const end = (event) => {
    if (!start) return;
    const [xs, ys] = corners(event);
    selection.remove();
    start = null;
    if (event.type === "pointerup" && xs[1] - xs[0] > 8) done(xs, ys);
  };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointercancel", end);
}
