// Requests to the server: the key, errors, and streams of server-sent events.

const KEY = "weft-key";

export class ServerError extends Error {
  constructor(error, status) {
    super(error.message);
    this.where = error.where;
    this.problem = error.problem;
    this.fix = error.fix;
    this.requestId = error.request_id;
    this.status = status;
  }
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

let asking = null; // several requests wait for one key

/** Ask for a key. Resolves when the user has given one. */
function askForKey(isUnknown) {
  asking ??= openDialog(isUnknown).finally(() => { asking = null; });
  return asking;
}

function openDialog(isUnknown) {
  const dialog = document.getElementById("key"), field = document.getElementById("key-value");
  document.getElementById("key-problem").textContent = isUnknown ? "The server does not know this key." : "";
  field.value = "";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.addEventListener("close", () => {
      if (!field.value) {
        const problem = { where: "key", problem: "missing", fix: "reload the page to give one" };
        reject(new ServerError({ ...problem, message: "key: missing" }, 401));
        return;
      }
      sessionStorage.setItem(KEY, field.value.trim());
      field.value = "";
      resolve();
    }, { once: true });
  });
}

async function errorOf(response) {
  try {
    return new ServerError((await response.json()).error, response.status);
  } catch {
    const problem = `status ${response.status}`;
    return new ServerError({ where: "server", problem, fix: "", message: `server: ${problem}` }, response.status);
  }
}

async function send(path, body, signal) {
  const headers = { Accept: "application/json, text/event-stream" };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  const options = { method: "GET", headers, signal, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const fix = "check that weft serve is running";
    throw new ServerError({ where: "server", problem: "does not answer", fix, message: `server: does not answer; ${fix}` }, 0);
  }
  if (response.status === 401) {
    const isUnknown = hasKey();
    sessionStorage.removeItem(KEY);
    await askForKey(isUnknown);
    return send(path, body, signal);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export const getJson = async (path) => (await send(path)).json();

export const post = async (path, body, signal) => (await send(path, body, signal)).json();

/** The events of a stream, until [DONE]. */
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error, 200);
      yield event;
    }
  }
}

export const runPath = (run, operation) => `/v1/runs/${encodeURIComponent(run.name)}/${operation}`;
