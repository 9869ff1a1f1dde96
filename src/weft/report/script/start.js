// Starts all parts in the page.

const root = document.documentElement;
const PARTS = { curves: Curves, cost: Cost, breakdown: Breakdown, items: Items, confusions: Confusions };

function theme() {
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `show in ${dark() ? "light" : "dark"} colors`);
  };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; tell(); });
  system.addEventListener("change", tell);
  tell();
}

root.classList.add("ready");
theme();
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".scroll").forEach(hinted);
document.querySelectorAll("[data-chart]").forEach((box) => PARTS[box.dataset.chart](box));
