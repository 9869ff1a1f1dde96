// Starts all parts in the page.

const root = document.documentElement;
const PARTS = { curves: Curves, cost: Cost, breakdown: Breakdown, items: Items, confusions: Confusions };

function initTheme() {
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const update = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `show in ${isDark() ? "light" : "dark"} colors`);
  };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; update(); });
  system.addEventListener("change", update);
  update();
}

root.classList.add("ready");
initTheme();
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll(".scroll").forEach(addScrollHint);
document.querySelectorAll("[data-chart]").forEach((box) => PARTS[box.dataset.chart](box));
