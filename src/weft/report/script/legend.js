// Which rows are visible: one choice for all charts, with the same buttons in each legend.

const shown = new Set(rows.keys());
const legends = [];

function toggle(row) {
  if (shown.has(row)) shown.delete(row);
  else shown.add(row);
  for (const chips of legends) {
    chips.querySelectorAll("button").forEach((chip, at) => chip.setAttribute("aria-pressed", shown.has(at)));
  }
  for (const again of drawings) again();
}

function legend() {
  const chips = h("div", { class: "chips", role: "group", "aria-label": "models shown" }, rows.map((_, row) =>
    h("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: () => toggle(row) },
      s("svg", { class: `chart ${color(row)}`, viewBox: "0 0 34 14", "aria-hidden": "true" },
        s("path", { class: "line", d: "M1 7H33", "stroke-dasharray": dash(row) }), point(row, 17, 7)),
      named(row))));
  legends.push(chips);
  return chips;
}
