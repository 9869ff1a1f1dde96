// The page of `weft serve`: choose a run and what to do with it. The address holds the choice and the options.
import { getJson } from "./api.js";
import { count, el, roving } from "./dom.js";
import { errorCard } from "./errors.js";
import { updateThemes } from "./figure.js";
import { modesOf } from "./modes.js";
import { Panel } from "./panel.js";

const main = document.getElementById("main"), nav = document.getElementById("runs");
let info, current = null;

// ---- theme

const THEME = "weft-theme", root = document.documentElement, themeButton = document.getElementById("theme");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches);

function setTheme(theme) {
  if (theme) root.dataset.theme = theme;
  themeButton.textContent = isDark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", `${isDark() ? "Light" : "Dark"} theme`);
  updateThemes();
}

themeButton.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  localStorage.setItem(THEME, theme);
  setTheme(theme);
});
systemIsDark.addEventListener("change", () => setTheme(""));
setTheme(["light", "dark"].includes(localStorage.getItem(THEME)) ? localStorage.getItem(THEME) : "");

// ---- address

const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const addressOf = (values) => `#${new URLSearchParams(values)}`;

function navigate(values) {
  const address = addressOf(values);
  if (address !== location.hash) history.pushState(null, "", address);
}

// ---- runs and modes

function renderRuns() {
  const items = info.runs.map((run) => {
    const link = el("a", { href: addressOf({ run: run.name }), "data-run": run.name }, el("strong", { text: run.name }), el("small", { text: run.noun }));
    return el("li", {}, link);
  });
  nav.replaceChildren(el("h2", { text: "Runs" }), el("ul", {}, items));
}

function tabs(run, modes, selected) {
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "What to do" });
  for (const mode of modes) {
    const isSelected = mode.id === selected.id;
    const tab = el("button", { type: "button", role: "tab", id: `tab-${mode.id}`, "aria-selected": String(isSelected), "aria-controls": "panel", tabindex: isSelected ? "0" : "-1", text: mode.label });
    tab.addEventListener("click", () => {
      navigate({ run: run.name, mode: mode.id });
      show();
      document.getElementById(`tab-${mode.id}`).focus();
    });
    list.append(tab);
  }
  roving(list, () => [...list.children]);
  return list;
}

function render(run, mode) {
  const modes = modesOf(run);
  const about = `${run.noun} \u00b7 ${run.arch} \u00b7 ${count(run.parameters ?? 0, "parameter")}${run.labels.length ? ` \u00b7 ${count(run.labels.length, "label")}` : ""}`;
  current = new Panel({ run, mode, runs: info.runs, limits: info.limits, navigate });
  const panel = el("div", { id: "panel", role: "tabpanel", "aria-label": mode.label }, current.element);
  main.replaceChildren(el("h1", { text: run.name }), el("p", { class: "about", text: about }), tabs(run, modes, mode), panel);
  document.title = `${run.name}: ${mode.label} \u00b7 weft`;
  for (const link of nav.querySelectorAll("a")) {
    if (link.dataset.run === run.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Show what the address says. */
function show() {
  const { run: name, mode: id, ...values } = readAddress();
  const run = info.runs.find((each) => each.name === name) ?? info.runs[0];
  const modes = modesOf(run), mode = modes.find((each) => each.id === id) ?? modes[0];
  if (!mode) {
    main.replaceChildren(el("h1", { text: run.name }), el("p", { text: "Nothing can be asked of this run." }));
    return;
  }
  if (current?.run !== run || current.mode.id !== mode.id) render(run, mode);
  current.fill(values);
}

addEventListener("popstate", () => { if (location.hash !== "#main") show(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

try {
  info = await getJson("/info");
  document.getElementById("version").textContent = info.version;
  renderRuns();
  show();
} catch (error) {
  main.replaceChildren(el("h1", { text: "weft" }), errorCard(error));
}
