// Chooses the page by the address, and keeps what all pages share: way, theme, shortcuts, notices.
import { watchConnection } from "./api.js";
import { buildCluster, openPool } from "./cluster.js";
import { fill, h, setText } from "./dom.js";
import { buildRun, openRun } from "./run.js";
import { openCompare, openRuns } from "./runs.js";
import { buildTimeline } from "./timeline.js";

const RUN_PAGES = { "": ["Run", buildRun], cluster: ["Cluster", buildCluster], timeline: ["Timeline", buildTimeline] };
const NOTICES = {
  lost: "The server does not answer. This page connects again by itself as soon as it does.",
  locked: "This page has no access. Open the address that phalanx watch printed.",
};
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const SHORTCUTS = [
  ["1", "Runs"], ["2 3 4", "Run, Cluster, Timeline"], ["5", "Pool"], ["/", "Filter the runs"], ["l", "Log scale"], ["s", "Smoothing"],
  ["x", "Next horizontal axis"], ["0", "Whole run"], ["t", "Theme"], ["?", "This list"],
  ["← →", "On a chart: move the cursor; on the timeline: move"], ["+ −", "On a chart or the timeline: zoom"], ["Enter", "On the timeline: one step"],
];

const main = document.getElementById("main");
let current = null;
let run = null;
let pool = sessionStorage.getItem("phalanx-pool") === "yes";

async function route() {
  current?.abort();
  current = new AbortController();
  const { signal } = current;
  const [page = "", id = "", part = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const first = main.childElementCount === 0;
  if (page === "run" && id) run = id;
  showWays(page, part);
  try {
    if (page === "run" && id) await openRun(main, id, signal, (RUN_PAGES[part] ?? RUN_PAGES[""])[1]);
    else if (page === "compare" && id) openCompare(main, id.split(","), signal);
    else if (page === "pool") openPool(main, signal);
    else openRuns(main, signal, knowsPool);
    if (page === "pool") knowsPool();
    if (!first) main.querySelector("h1")?.focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    main.replaceChildren(h("section.card", {}, h("h1", { tabindex: -1 }, "This cannot be shown"), h("p", {}, error.message),
      h("p", {}, h("button.button", { type: "button", onclick: route }, "Try again"), " ", h("a", { href: "#/runs" }, "All runs"))));
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function ways() {
  const own = run ? Object.entries(RUN_PAGES).map(([part, [title]]) => [title, `#/run/${encodeURIComponent(run)}${part && `/${part}`}`]) : [];
  return [["Runs", "#/runs"], ...own, ...(pool ? [["Pool", "#/pool"]] : [])];
}

function showWays(page, part) {
  const here = { run: RUN_PAGES[part]?.[0] ?? "Run", pool: "Pool", compare: "" }[page] ?? "Runs";
  fill(document.getElementById("ways"), [ways(), here], () => ways().map(([title, href]) => h("a", { href, "aria-current": title === here ? "page" : null }, title)));
}

function knowsPool() {
  if (pool) return;
  pool = true;
  sessionStorage.setItem("phalanx-pool", "yes");
  const [page = "", , part = ""] = location.hash.replace(/^#\/?/, "").split("/");
  showWays(page, part);
}

function setTheme(chosen) {
  localStorage.setItem("phalanx-theme", chosen);
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  setText(document.getElementById("theme"), THEMES[chosen]);
  dispatchEvent(new Event("phalanx-theme"));
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(localStorage.getItem("phalanx-theme") ?? "auto") + 1) % names.length]);
}

function press(event) {
  const typing = event.target.closest("input:not([type=checkbox]):not([type=radio]), select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || typing || localStorage.getItem("phalanx-keys") === "off") return;
  const titles = { 1: "Runs", 2: "Run", 3: "Cluster", 4: "Timeline", 5: "Pool" };
  const way = ways().find(([title]) => title === titles[event.key]);
  const control = event.key.length === 1 && /[/sl0]/.test(event.key) && main.querySelector(`[data-key="${event.key}"]`);
  if (way) location.hash = way[1];
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") document.getElementById("help").showModal();
  else if (event.key === "x") nextAxis();
  else if (control && /[l0]/.test(event.key)) control.click();
  else if (control) control.focus();
  else return;
  event.preventDefault();
}

function nextAxis() {
  const axes = [...main.querySelectorAll(".choice input")];
  axes[(axes.findIndex((axis) => axis.checked) + 1) % axes.length]?.click();
}

function start() {
  const notice = document.getElementById("notice");
  const state = document.getElementById("connection");
  watchConnection((now) => {
    setText(notice, NOTICES[now] ?? "");
    notice.hidden = !(now in NOTICES);
    state.dataset.state = now;
    setText(state, { live: "connected", lost: "connecting", locked: "no access" }[now] ?? "");
  });
  document.getElementById("shortcuts").append(...SHORTCUTS.map(([key, what]) => h("div", {}, h("dt", {}, key.split(" ").map((k) => h("kbd", {}, k))), h("dd", {}, what))));
  const keys = document.getElementById("keys");
  keys.checked = localStorage.getItem("phalanx-keys") !== "off";
  keys.addEventListener("change", () => localStorage.setItem("phalanx-keys", keys.checked ? "on" : "off"));
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("help-button").addEventListener("click", () => document.getElementById("help").showModal());
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  setText(document.getElementById("theme"), THEMES[localStorage.getItem("phalanx-theme") ?? "auto"] ?? THEMES.auto);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("phalanx-theme")));
  addEventListener("keydown", press);
  addEventListener("hashchange", route);
  route();
}

start();
