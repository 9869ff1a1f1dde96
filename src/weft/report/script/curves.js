// Learning curves: losses, gradient norms and learning rates side by side, with a common zoom along the x axis.

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
  const logarithm = (part) => view.log || part.startsWith("grad_norm");
  const parts = Object.keys(titles).filter((part) => data.curves.some((curve) => curve[part].value.length));
  const panels = Object.fromEntries(parts.map((part) => [part, panel(titles[part])]));
  const reset = h("button", { type: "button", class: "reset", disabled: true, onclick: () => showAll() }, "Reset zoom");
  const again = () => parts.forEach((part) => draw(part, Math.floor(panels[part].plot.clientWidth)));

  const measured = (unit) => data.curves.some((curve) => parts.some((part) => curve[part][unit].some(drawable)));
  const units = Object.keys(UNITS).filter(measured).map((unit) => [unit, UNITS[unit].title]);

  function showAll() {
    [view.x, view.y] = [null, {}];
    again();
  }

  // The points of a curve in the chosen unit, without those that have no logarithm.
  function points(curve, part) {
    const { value, [view.unit]: at } = curve[part];
    return value.map((y, index) => [number(at[index]), number(y)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!logarithm(part) || y > 0));
  }

  function visible(part) {
    return data.curves.filter((curve) => shown.has(curve.row)).map((curve) => ({ ...curve, points: points(curve, part) }));
  }

  function ranges(curves, part) {
    // all panels share the x axis, so that they zoom together
    const all = parts.flatMap((other) => visible(other)).flatMap((curve) => curve.points.map(([x]) => x));
    const xs = view.x || range(all, { room: 0.01 });
    const inside = curves.flatMap((curve) => curve.points).filter(([x]) => x >= xs[0] && x <= xs[1]).map(([, y]) => y);
    return [xs, view.y[part] || range([...inside, ...limits(part)], { log: logarithm(part) })];
  }

  // max_grad_norm of the visible runs.
  function limits(part) {
    const norms = part === "grad_norm" ? data.curves.filter((curve) => shown.has(curve.row)).map((curve) => number(curve.max_grad_norm)) : [];
    return [...new Set(norms.filter(Number.isFinite))];
  }

  // Whether the running mean of a noisy curve is drawn over its values.
  const smoothed = (curve, part) => view.smooth && curve[part].smooth.length > 0;

  function mean(curve, part) {
    const { smooth, [view.unit]: at } = curve[part];
    return smooth.map((y, index) => [number(at[index]), number(y)])
      .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!logarithm(part) || y > 0));
  }

  const path = (places, x, y) => places.map(([a, b], at) => `${at ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
  const raw = (curve, x, y) => s("path", { class: `line raw ${color(curve.row)}`, d: path(curve.points, x, y) });

  // The maximum norms, as thin lines.
  function spikes(curve, x, y) {
    const kind = smoothed(curve, "grad_norm") ? "raw" : "second";
    return s("path", { class: `line ${kind} ${color(curve.row)}`, d: path(points(curve, "grad_norm_max"), x, y) });
  }

  function line(curve, part, x, y, inner) {
    const seeds = data.curves.filter((other) => other.row === curve.row).map((other) => other.seed);
    const kind = curve.seed === seeds[0] ? "line" : "line second";
    // a model fitted in one pass has no curve: a horizontal line to compare with
    const alone = curve.points.length === 1;
    const d = alone ? `M${inner.left} ${y(curve.points[0][1]).toFixed(1)}H${inner.right}`
      : path(smoothed(curve, part) ? mean(curve, part) : curve.points, x, y);
    const look = `${kind} ${color(curve.row)}${alone ? " level" : ""}`;
    const drawn = [s("path", { class: look, d, "stroke-dasharray": dash(curve.row) })];
    const few = curve.points.filter(([a]) => a >= x.domain[0] && a <= x.domain[1]);
    if (few.length <= 40 && !smoothed(curve, part)) drawn.push(...few.map(([a, b]) => point(curve.row, x(a), y(b), 0.8)));
    return drawn;
  }

  function draw(part, width) {
    if (width <= 0) return;
    const curves = visible(part).filter((curve) => curve.points.length);
    const tops = part === "grad_norm" ? visible("grad_norm_max") : [];
    const [xs, ys] = ranges([...curves, ...tops], part);
    const height = Math.round(Math.min(340, Math.max(240, width * 0.62)));
    const chart = frame(width, height, `${titles[part]} over ${UNITS[view.unit].title}`);
    const { svg, inner } = chart;
    const x = scale(xs, [inner.left, inner.right]), y = scale(ys, [inner.bottom, inner.top], { log: logarithm(part) });
    yAxis(chart, y);
    xAxis(chart, x, { label: UNITS[view.unit].title, text: UNITS[view.unit].text });
    const group = clipped(chart);
    limits(part).forEach((value) => group.append(s("path", { class: "limit", d: `M${inner.left} ${y(value).toFixed(1)}H${inner.right}` })));
    if (part === "grad_norm") curves.forEach((curve) => group.append(spikes(curve, x, y)));
    curves.filter((curve) => smoothed(curve, part)).forEach((curve) => group.append(raw(curve, x, y)));
    curves.forEach((curve) => group.append(...line(curve, part, x, y, inner)));
    zoomable(svg, inner, x, y, part);
    pointing(panels[part], chart, curves, x, y);
    panels[part].plot.replaceChildren(svg);
    reset.disabled = !(view.x || Object.values(view.y).some(Boolean));
  }

  function zoomable(svg, inner, x, y, part) {
    svg.classList.add("zooms");
    fill(svg, { tabindex: "0" }, []);
    dragging(svg, inner, ([left, right], height) => {
      view.x = [x.back(left), x.back(right)];
      view.y[part] = height ? [y.back(height[1]), y.back(height[0])] : null;
      again();
    });
    svg.addEventListener("dblclick", showAll);
    svg.addEventListener("keydown", (event) => keys(event, x, part));
  }

  function keys(event, x, part) {
    const [low, high] = x.domain, span = high - low;
    const moves = {
      "+": [low + span / 4, high - span / 4], "=": [low + span / 4, high - span / 4], "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 5, high - span / 5], ArrowRight: [low + span / 5, high + span / 5],
    };
    if (event.key === "Escape") showAll();
    else if (moves[event.key]) [view.x, view.y] = [moves[event.key], {}];
    else return;
    event.preventDefault();
    again();
    panels[part].plot.firstElementChild.focus();
  }

  function when(at) {
    return { step: `step ${fixed(at, 0)}`, tokens: `${short(at)} tokens`, seconds: duration(at) }[view.unit];
  }

  // A tooltip for the point nearest to the pointer.
  function pointing({ plot, tip }, { svg, width }, curves, x, y) {
    const halo = s("circle", { r: 7, visibility: "hidden" });
    svg.append(halo);
    tip.hidden = true;
    const places = curves.flatMap((curve) => curve.points.map((point) => ({ curve, point, at: [x(point[0]), y(point[1])] })));
    const hide = () => { tip.hidden = true; halo.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const hit = event.buttons ? null : nearest(places, pixel(svg, event), 30);
      if (!hit) return hide();
      const { curve, point: [where, value], at } = hit;
      fill(halo, { class: `halo ${color(curve.row)}`, cx: at[0], cy: at[1], visibility: "visible" }, []);
      tip.hidden = false;
      tip.replaceChildren(named(curve.row), `, seed ${curve.seed}`, h("br"), `${when(where)}: ${digits(value, 4)}`);
      tip.style.top = `${plot.offsetTop + at[1] + 12}px`;
      tip.style.left = `${Math.min(at[0] + 12, width - tip.offsetWidth - 4)}px`;
      return undefined;
    });
  }

  function along(unit) {
    [view.unit, view.x] = [unit, null];
    again();
  }

  function logarithmic(event) {
    [view.log, view.y] = [event.target.checked, {}];
    again();
  }

  function smoothing(event) {
    view.smooth = event.target.checked;
    again();
  }

  const noisy = data.curves.some((curve) => parts.some((part) => curve[part].smooth.length));
  const controls = h("div", { class: "controls" },
    units.length > 1 ? choice("x axis", Object.fromEntries(units), view.unit, along) : null,
    h("label", {}, h("input", { type: "checkbox", class: "log", onchange: logarithmic }), " log scale"),
    noisy ? h("label", {}, h("input", { type: "checkbox", class: "smooth", checked: true, onchange: smoothing }), " smoothed") : null,
    reset);
  box.append(legend(), controls, h("div", { class: "panels" }, Object.values(panels).map(({ figure }) => figure)));
  keepDrawn(box, again);
}

function panel(title) {
  const plot = h("div"), tip = h("div", { class: "tip", hidden: true });
  return { plot, tip, figure: h("figure", {}, h("figcaption", {}, title), plot, tip) };
}

// The place nearest to a pixel, within a radius.
function nearest(places, [x, y], radius) {
  let closest = null, distance = radius;
  for (const place of places) {
    const far = Math.hypot(place.at[0] - x, place.at[1] - y);
    if (far < distance) [closest, distance] = [place, far];
  }
  return closest;
}

// The position of the pointer in SVG units.
function pixel(svg, event) {
  const box = svg.getBoundingClientRect();
  const view = svg.viewBox.baseVal;
  return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
}

// A region selected with the pointer; flat ones, and those by touch, which scrolls the page, have no height.
function dragging(svg, inner, done) {
  let start = null, mark = null;
  const inside = ([x, y]) => [Math.min(inner.right, Math.max(inner.left, x)), Math.min(inner.bottom, Math.max(inner.top, y))];
  const corners = (event) => {
    const end = inside(pixel(svg, event));
    const [xs, ys] = [0, 1].map((axis) => [start[axis], end[axis]].sort((a, b) => a - b));
    const tall = event.pointerType !== "touch" && ys[1] - ys[0] > 15;
    return [xs, tall ? ys : null];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = inside(pixel(svg, event));
    svg.setPointerCapture(event.pointerId);
    mark = s("rect", { class: "select" });
    svg.append(mark);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [xs, ys] = corners(event);
    const [top, bottom] = ys || [inner.top, inner.bottom];
    fill(mark, { x: xs[0], y: top, width: xs[1] - xs[0], height: bottom - top }, []);
  });
  const end = (event) => {
    if (!start) return;
    const [xs, ys] = corners(event);
    mark.remove();
    start = null;
    if (event.type === "pointerup" && xs[1] - xs[0] > 8) done(xs, ys);
  };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointercancel", end);
}
