// Explanations of an input: the views of a run, each loaded when it is chosen.
import { post, runPath } from "./api.js";
import { el, newId } from "./dom.js";
import { errorCard } from "./errors.js";
import { pictures } from "./figure.js";
import { requestView } from "./snippets.js";
import { attentionView, weightsView } from "./weights.js";

const NAMES = { "beam-search": "search tree", "gradient-flow": "gradient flow", "logit-lens": "logit lens", counts: "n-gram counts" };

const nameOf = (view) => NAMES[view] ?? view.replaceAll("-", " ");

/** What can be shown of the data of a view besides its pictures. */
function interactive({ view, data }) {
  if (view === "attention" && data.layers) {
    const cross = data.layers.filter((layer) => layer.component === "cross");
    const layers = cross.length ? cross : data.layers.filter((layer) => layer.component === data.layers.at(-1).component);
    return attentionView(layers, cross.length ? "source" : "text");
  }
  if (view === "attribution" && data.sides) {
    return weightsView({ outputs: data.outputs, sides: data.sides, isSigned: true, verb: "because of" });
  }
  return null;
}

export function explanationView(explanation) {
  const box = el("div", { class: "explanation" }, el("p", { class: "note", text: explanation.title }));
  const shown = interactive(explanation);
  const drawn = pictures(explanation.pictures, `Picture of ${nameOf(explanation.view)}`);
  if (!shown) return box.append(...drawn), box;
  box.append(shown);
  const isAlignment = (explanation.data.layers ?? []).some((layer) => layer.component === "cross");
  if (drawn.length) box.append(el("details", { open: isAlignment }, el("summary", { text: "Picture" }), drawn));
  return box;
}

async function explain(run, input, view, options) {
  const path = runPath(run, "explain"), body = { input, view, ...(options ? { options } : {}) };
  try {
    const { explanations: [explanation] } = await post(path, body);
    return { explanation, request: requestView(path, body) };
  } catch (error) {
    if (!options || error.status !== 422) throw error;
    return explain(run, input, view, null); // a model without it
  }
}

/**
 * The views of a run for one input. `first` is shown at once; the others when they are chosen. `onView` gets each
 * explanation. `options` are those of single views.
 */
export function explanations(run, input, { first = null, onView = () => {}, options = {} } = {}) {
  if (!run.operations.includes("explain") || !run.views.length) return null;
  const name = newId("view"), box = el("div", { class: "explained" });
  const choice = el("fieldset", { class: "choice views" }, el("legend", { class: "visually-hidden", text: "View" }));
  const load = async (view) => {
    box.setAttribute("aria-busy", "true");
    box.replaceChildren(el("p", { class: "note", role: "status", text: `Computing ${nameOf(view)}\u2026` }));
    try {
      const { explanation, request } = await explain(run, input, view, options[view]);
      box.replaceChildren(explanationView(explanation), request);
      onView(explanation);
    } catch (error) {
      box.replaceChildren(errorCard(error));
    }
    box.removeAttribute("aria-busy");
  };
  for (const view of run.views) {
    const radio = el("input", { type: "radio", name, value: view, checked: view === first });
    radio.addEventListener("change", () => load(view));
    choice.append(el("label", {}, radio, nameOf(view)));
  }
  if (first) load(first);
  if (!first) box.append(el("p", { class: "note", text: "Choose a view to see what the model does with this input." }));
  return el("section", { class: "explain" }, el("h3", { text: "Explanation" }), choice, box);
}
