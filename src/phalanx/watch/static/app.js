// Chooses the page by the address, and keeps what all pages share: the way, theme, shortcuts, notices.
import { watchConnection } from "./api.js";
import { buildCluster, openPool } from "./cluster.js";
import { button, fill, h, section, setText } from "./dom.js";
import { buildRun, openRun } from "./run.js";
import { openCompare, openRuns } from "./runs.js";
import { buildTimeline } from "./timeline.js";

const RUN_PAGES = { "": ["Run", buildRun], cluster: ["Cluster", buildCluster], timeline: ["Timeline", buildTimeline] };
const STATES = { live: "connected", lost: "connecting", locked: "no access" };
const NOTICES = {
  lost: "The server does not answer. This page connects again by itself as soon as it does.",
  locked: "This page has no access. Open the address that phalanx watch printed.",
};
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const WAYS = { 1: "Runs", 2: "Run", 3: "Cluster", 4: "Timeline", 5: "Pool" };
const SHORTCUTS = [
  ["1", "Runs"], ["2 3 4", "Run, Cluster, Timeline"], ["5", "Pool"], ["/", "Filter the runs"], ["x", "Next horizontal axis"], ["s", "Smoothing"], ["l", "Log scale"],
  ["0", "Whole run"], ["t", "Theme"], ["?", "This list"], ["← →", "Chart: move the cursor; timeline: move"], ["+ −", "Chart, timeline: zoom"], ["Enter", "Timeline: one step"],
];
const [main, notice, connection, theme, help, keys, way] = ["main", "notice", "connection", "theme", "help", "keys", "ways"].map((id) => document.getElementById(id));
let current = new AbortController();
let run = null;
let pool = sessionStorage.getItem("phalanx-pool") === "yes";

/** The words of the address: the page, what it is of, and the part of it. */
function words() {
  // An address that somebody has cut short may end within a letter.
  return [...location.hash.replace(/^#\/?/, "").replace(/%(?![\da-f]{2})/gi, "%25").split("/").map(decodeURIComponent), "", "", ""];
}

async function route() {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  const [page, id, part] = words();
  const first = main.childElementCount === 0;
  if (page === "run" && id) run = id;
  if (page === "pool") knowsPool();
  showWays();
  try {
    if (page === "run" && id) await openRun(main, id, signal, (RUN_PAGES[part] ?? RUN_PAGES[""])[1]);
    else if (page === "compare" && id) openCompare(main, id.split(","), signal);
    else if (page === "pool") openPool(main, signal);
    else openRuns(main, signal, knowsPool);
    if (!first) main.querySelector("h1")?.focus();
  } catch (error) {
    if (signal.aborted) return;
    main.replaceChildren(h("h1", { tabindex: -1 }, "This page cannot be shown"), section("Why", h("p", {}, error.message),
      h("p.row", {}, button("Try again", route), h("a", { href: "#/runs" }, "All runs"))));
  }
}

function ways() {
  const own = run ? Object.entries(RUN_PAGES).map(([part, [title]]) => [title, `#/run/${encodeURIComponent(run)}${part && `/${part}`}`]) : [];
  return [["Runs", "#/runs"], ...own, ...(pool ? [["Pool", "#/pool"]] : [])];
}

function showWays() {
  const [page, , part] = words();
  const here = { run: RUN_PAGES[part]?.[0] ?? "Run", pool: "Pool", compare: "" }[page] ?? "Runs";
  fill(way, [ways(), here], () => ways().map(([title, href]) => h("a", { href, "aria-current": title === here ? "page" : null }, title)));
}

function knowsPool() {
  if (pool) return;
  pool = true;
  sessionStorage.setItem("phalanx-pool", "yes");
  showWays();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const chosen = names[(names.indexOf(localStorage.getItem("phalanx-theme") ?? "auto") + 1) % names.length];
  localStorage.setItem("phalanx-theme", chosen);
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  setText(theme, THEMES[chosen]);
  dispatchEvent(new Event("phalanx-theme"));
}

function press(event) {
  const { key, target } = event;
  const typing = target.closest("input:not([type=checkbox], [type=radio]), select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing || !keys.checked) return;
  const there = ways().find(([title]) => title === WAYS[key]);
  const axes = [...main.querySelectorAll(".choice input")];
  const control = "/sl0".includes(key) && main.querySelector(`[data-key="${key}"]`);
  if (there) location.hash = there[1];
  else if (key === "t") nextTheme();
  else if (key === "?") help.showModal();
  else if (key === "x") axes[(axes.findIndex((axis) => axis.checked) + 1) % axes.length]?.click();
  else if (control && "l0".includes(key)) control.click();
  else if (control) control.focus();
  else return;
  event.preventDefault();
}

watchConnection((now) => {
  setText(notice, NOTICES[now] ?? "");
  notice.hidden = !NOTICES[now];
  connection.dataset.state = now;
  setText(connection, STATES[now]);
});
document.getElementById("shortcuts").append(...SHORTCUTS.map(([names, what]) => h("div", {}, h("dt", {}, names.split(" ").map((name) => h("kbd", {}, name))), h("dd", {}, what))));
keys.checked = localStorage.getItem("phalanx-keys") !== "off";
keys.addEventListener("change", () => localStorage.setItem("phalanx-keys", keys.checked ? "on" : "off"));
theme.addEventListener("click", nextTheme);
document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
setText(theme, THEMES[localStorage.getItem("phalanx-theme")] ?? THEMES.auto);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("phalanx-theme")));
addEventListener("keydown", press);
addEventListener("hashchange", route);
route();
