// The visible rows, shared by all charts; each legend has the same buttons.

const visibleRows = new Set(rows.keys());
const legends = [];

function toggle(row) {
  if (visibleRows.has(row)) visibleRows.delete(row);
  else visibleRows.add(row);
  for (const chips of legends) {
    chips.querySelectorAll("button").forEach((chip, index) => chip.setAttribute("aria-pressed", visibleRows.has(index)));
  }
  for (const redraw of redraws) redraw();
}

function legend() {
  const chips = h("div", { class: "chips", role: "group", "aria-label": "models shown" }, rows.map((_, row) =>
    h("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: () => toggle(row) },
      s("svg", { class: `chart ${color(row)}`, viewBox: "0 0 34 14", "aria-hidden": "true" },
        s("path", { class: "line", d: "M1 7H33", "stroke-dasharray": dash(row) }), point(row, 17, 7)),
      nameOf(row))));
  legends.push(chips);
  return chips;
}
