// Talks with the server, and knows whether it answers.
const watchers = new Set();
let state = "idle";

function show(now) {
  if (state !== now) watchers.forEach((watcher) => watcher(now));
  state = now;
}

/** Calls `watcher` with "live", "lost" (no answer) or "locked" (no access) whenever that changes. */
export const watchConnection = (watcher) => watchers.add(watcher);

/** What the server answers to a path below /api, as values. */
export async function get(path, signal = null) {
  let response;
  try {
    response = await fetch(`/api/${path}`, { signal });
  } catch (error) {
    if (error.name !== "AbortError") show("lost");
    throw error;
  }
  if (response.status === 401) show("locked");
  if (!response.ok) {
    const { error = `The server answered ${response.status}.` } = await response.json().catch(() => ({}));
    throw new Error(String(error));
  }
  show("live");
  return response.json();
}

export function query(path, values) {
  return `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value != null))}`;
}

export const runPath = (id, rest = "") => `run/${encodeURIComponent(id)}${rest}`;

/** Listens to events of the server until `signal` is aborted, and connects again by itself. */
export function listen(path, signal, handlers) {
  let source = null;
  let wait = 500;
  const open = () => {
    source = new EventSource(`/api/${path}`);
    source.onopen = () => (wait = 500);
    source.onerror = () => again(source.close());
    for (const [name, handler] of Object.entries(handlers)) source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
  };
  const again = async () => {
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(8000, wait * 1.6);
    // An event source does not say why it failed; an ordinary request does.
    const answers = !signal.aborted && (await get("runs?limit=1", signal).then(() => true, () => false));
    if (signal.aborted) return;
    if (answers) open();
    else again();
    if (answers) (handlers.charts ?? handlers.pool)?.();
  };
  open();
  signal.addEventListener("abort", () => source.close());
}

/** Has `work` done on each call, one at a time; what is asked for meanwhile, or unseen, comes after. */
export function oneAtATime(work, signal) {
  let running = false;
  let wanted = false;
  const run = async () => {
    wanted = true;
    if (running) return;
    running = true;
    try {
      while (wanted && !document.hidden && !signal.aborted) {
        wanted = false;
        await work();
      }
    } catch (error) {
      if (error.name !== "AbortError" && state === "live") console.warn(error.message);
    } finally {
      running = false;
    }
  };
  document.addEventListener("visibilitychange", () => wanted && run(), { signal });
  return run;
}
