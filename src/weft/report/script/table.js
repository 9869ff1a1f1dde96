// Tables that sort by any column; missing values come last in both directions.

const key = (line, column) => {
  const cell = line.children[column];
  if (!cell.hasAttribute("data-value")) return null;
  const text = cell.getAttribute("data-value");
  if (cell.tagName === "TH") return text;
  return text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
};

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
  return a < b ? -1 : a > b ? 1 : 0;
}

function sortBy(table, heads, column) {
  const now = heads[column].getAttribute("aria-sort");
  const first = heads[column].querySelector("button").dataset.first === "higher" ? "descending" : "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  const way = now === first ? other : first;
  heads.forEach((head, at) => head.setAttribute("aria-sort", at === column ? way : "none"));
  const sign = way === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const lines = [...body.rows].sort((a, b) => {
    const [left, right] = [key(a, column), key(b, column)];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * compare(left, right);
  });
  body.append(...lines);
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sortBy(table, heads, column)));
}
