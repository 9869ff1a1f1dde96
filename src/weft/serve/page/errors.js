// Errors of the server: where, problem, fix.
import { el, facts } from "./dom.js";

export function errorCard(error) {
  if (error.name === "AbortError") return el("p", { class: "note", text: "Stopped." });
  const isServers = "where" in error;
  const entries = isServers
    ? [["Where", error.where], ["Problem", error.problem], ["Fix", error.fix]].filter(([, value]) => value)
    : [["Problem", error.message]];
  if (error.requestId ?? error.request_id) entries.push(["Request", error.requestId ?? error.request_id]);
  return el("div", { class: "error", role: "alert" }, el("h3", { text: "This did not work" }), facts(entries));
}
