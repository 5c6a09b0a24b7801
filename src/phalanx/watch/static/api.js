// Talks with the server, and knows whether it answers.

const connection = { state: "idle", watchers: new Set() };

export class Refused extends Error {}

function show(state) {
  if (connection.state === state) return;
  connection.state = state;
  for (const watcher of connection.watchers) watcher(state);
}

/** Calls `watcher` with "live", "lost" (no answer) or "locked" (no access) whenever that changes. */
export function watchConnection(watcher) {
  connection.watchers.add(watcher);
}

/** What the server answers to a path below /api, as values. */
export async function get(path, signal = null) {
  let response;
  try {
    response = await fetch(`/api/${path}`, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name !== "AbortError") show("lost");
    throw error;
  }
  if (response.status === 401) show("locked");
  if (!response.ok) throw new Refused(await reason(response));
  show("live");
  return response.json();
}

async function reason(response) {
  const text = await response.text();
  try {
    const found = JSON.parse(text);
    return String(found.error ?? found.detail ?? text);
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

export function query(path, values) {
  const words = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return words.length ? `${path}?${new URLSearchParams(words)}` : path;
}

export const runPath = (id, rest = "") => `run/${encodeURIComponent(id)}${rest}`;

/** Listens to events of the server until the returned function is called, and connects again by itself. */
export function listen(path, handlers) {
  let source = null;
  let timer = 0;
  let wait = 500;
  let closed = false;
  const open = () => {
    source = new EventSource(`/api/${path}`);
    source.onopen = () => {
      show("live");
      handlers.opened?.();
    };
    for (const [name, handler] of Object.entries(handlers)) {
      if (name === "opened") continue;
      source.addEventListener(name, (event) => {
        wait = 500;
        handler(JSON.parse(event.data));
      });
    }
    source.onerror = () => {
      source.close();
      again();
    };
  };
  const again = () => {
    if (closed) return;
    timer = setTimeout(async () => {
      // An event source does not say why it failed; an ordinary request does.
      wait = Math.min(8000, wait * 1.6);
      try {
        await get("runs?limit=1");
        if (!closed) open();
      } catch {
        again();
      }
    }, wait);
  };
  open();
  return () => {
    closed = true;
    clearTimeout(timer);
    source.close();
  };
}

/** Runs `work` now and on each call, one at a time; what is asked for meanwhile, or unseen, comes after. */
export function oneAtATime(work, signal) {
  let running = false;
  let wanted = false;
  const run = async () => {
    wanted = true;
    if (running || document.hidden || signal.aborted) return;
    running = true;
    try {
      while (wanted && !document.hidden && !signal.aborted) {
        wanted = false;
        await work();
      }
    } catch (error) {
      if (error.name !== "AbortError" && connection.state === "live") console.warn(error.message);
    } finally {
      running = false;
    }
  };
  document.addEventListener("visibilitychange", () => wanted && run(), { signal });
  return run;
}
