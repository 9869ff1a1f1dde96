// Tables that sort by any column; missing values come last in both directions.

const sortKey = (line, column) => {
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
  const current = heads[column].getAttribute("aria-sort");
  const first = heads[column].querySelector("button").dataset.first === "higher" ? "descending" : "ascending";
  const opposite = first === "ascending" ? "descending" : "ascending";
  const direction = current === first ? opposite : first;
  heads.forEach((head, index) => head.setAttribute("aria-sort", index === column ? direction : "none"));
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const lines = [...body.rows].sort((a, b) => {
    const [left, right] = [sortKey(a, column), sortKey(b, column)];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * compare(left, right);
  });
  body.append(...lines);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sortBy(table, heads, column)));
}
