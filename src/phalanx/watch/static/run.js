// The pages of one run share a head: what it is, how far it is, and the way to its other pages.
import { get, listen, oneAtATime, query, runPath } from "./api.js";
import { fill, h, say, scrolling, section, setText, table } from "./dom.js";
import { bytes, day, duration, number, percent, quantity } from "./format.js";
import { Group, markList } from "./group.js";

const LOG_LINES = 200;
export const STATES = { running: "●", finished: "✓", failed: "✕", stopped: "■", lost: "✕", interrupted: "■" };
export const badge = (status) => h("span.badge", { "data-status": status }, h("span", { "aria-hidden": "true" }, STATES[status] ?? "○"), ` ${status}`);

/** Opens a page of a run: `build(frame)` returns what it does with each state, and when something was added. */
export async function openRun(main, id, signal, build) {
  const head = h("header.run");
  const body = h("div");
  main.replaceChildren(head, body);
  const view = await get(runPath(id), signal);
  document.title = `${view.title} · Phalanx`;
  const frame = { id, view, body, signal, running: view.status === "running" };
  const page = build(frame);
  const progress = progressLine();
  head.append(h("h1", { tabindex: -1 }, view.title), h("div"), progress.node);
  const take = (state) => {
    frame.running = state.status === "running";
    frame.view = state;
    showHead(head.children[1], state);
    progress.take(state);
    page.state?.(state);
  };
  take(view);
  const close = listen(runPath(id, "/stream"), {
    state: take,
    charts: () => page.changed?.(),
    opened: () => page.changed?.(),
  });
  signal.addEventListener("abort", close);
}

function showHead(node, view) {
  fill(node, [view.status, view.workers.length, view.machines.length, view.began, view.strategy, view.id], () => h("p.facts", {},
    badge(view.status), h("span", {}, view.strategy), h("span", {}, count(view.workers.length, "worker"), " on ", count(view.machines.length, "machine")),
    h("span", {}, "began ", day(view.began)), h("code", {}, view.id)));
}

const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

function progressLine() {
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress of the run" });
  const words = h("p.so-far");
  let said = -1;
  const take = ({ progress, status, seconds, building }) => {
    const { done, total, share, left_seconds: left, epoch, epochs } = progress ?? {};
    bar.hidden = share === null || share === undefined;
    bar.value = share ?? 0;
    const parts = [
      bar.hidden ? null : percent(share),
      done !== null && done !== undefined && `${number(done)}${total ? ` of ${number(total)}` : ""} samples`,
      epoch !== null && epoch !== undefined && (epochs ? `epoch ${number(Math.floor(epoch))} of ${number(epochs)}` : `epoch ${number(Math.floor(epoch))}`),
      `${duration(seconds)} so far`,
      status === "running" && left !== null && left !== undefined && `${duration(left)} left`,
      building !== null && building !== undefined && `reading the history: ${percent(building, 0)}`,
    ];
    if (status !== "running") parts[3] = `took ${duration(seconds)}`;
    setText(words, parts.filter(Boolean).join(" · "));
    const tenth = Math.floor((share ?? 0) * 10);
    if (tenth > said && said >= 0) say(`${tenth * 10} percent of the run is done.`);
    said = tenth;
  };
  return { node: h("div.progress", {}, bar, words), take };
}

export function buildRun(frame) {
  const { id, signal } = frame;
  const tiles = h("dl.tiles", { "aria-label": "Figures now" });
  const group = new Group({ path: runPath(id, "/charts"), signal, csv: (chart) => query(`/api/${runPath(id, "/csv/")}${encodeURIComponent(chart.name)}`, { by: group.by }) });
  const marks = h("div");
  const workers = h("div");
  const verdict = h("div");
  const settings = h("div");
  const log = logTail(frame);
  frame.body.append(verdict, tiles, group.toolbar(),
    h("div.columns", {}, group.node, h("aside.side", { "aria-label": "What happened, and workers" },
      section("What happened", marks), section("Workers", workers))),
    section("Log", log.node), section("Command and settings", settings));
  let last = null;
  const showTiles = () => fill(tiles, figures(frame.view, last), (found) => found.map(([name, value, remark]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, remark && h("small", {}, remark)))));
  group.loaded = (answer) => {
    last = answer.charts;
    showTiles();
  };
  const changed = () => {
    group.refresh();
    log.refresh();
  };
  changed();
  return {
    changed,
    state: (view) => {
      showTiles();
      fill(verdict, [view.worth, view.notes], () => verdictOf(view));
      fill(marks, view.marks, () => markList(group, view.marks, "Nothing but training: no switch, fault, change of shares or alert."));
      group.takeMarks(view.marks);
      fill(workers, view.workers, () => scrolling("Workers", table("Workers of the run", [
        { title: "Worker", cell: (w) => [w.rank, h("small", {}, w.machine)] },
        { title: "State", text: true, cell: (w) => [w.state, h("small", {}, w.device)] },
        { title: "Samples/s", cell: (w) => [number(w.samples_per_second), w.share == null ? null : h("small", {}, percent(w.share, 0))] },
        { title: "Waits", cell: (w) => [percent(w.waiting, 0), w.staleness == null ? null : h("small", {}, `stale ${number(w.staleness)}`)] }], view.workers)));
      fill(settings, [view.command, view.settings, view.result, view.script, view.system], () => settingsOf(view));
      log.take(view.workers);
    },
  };
}

/** The newest figures: [name, value, remark]. */
function figures(view, charts) {
  const found = [];
  const final = (name, i = 0) => charts?.find((chart) => chart.name === name)?.series[i]?.values.findLast((v) => v !== null);
  const evaluation = charts?.find((chart) => chart.name === "evaluation");
  const add = (name, value, unit, remark = "") => value !== undefined && value !== null && found.push([name, quantity(value, unit), remark]);
  add("Loss", final("loss"), "", "training");
  evaluation?.series.slice(0, 2).forEach((series, i) => {
    const best = series.values.reduce((a, b) => (b === null || (a !== null && a >= b) ? a : b), null);
    const rises = /acc|f1|auc|score|precision|recall/i.test(series.name);
    add(series.name, final("evaluation", i), evaluation.unit, rises ? `best ${quantity(best, evaluation.unit)}` : "evaluation");
  });
  add("Throughput", final("throughput"), "", "samples/s");
  add("Learning rate", final("rate"), "");
  add("Gradient norm", final("gradient_norm"), "");
  found.push([view.status === "running" ? "Running for" : "Duration", duration(view.seconds), ""]);
  if (view.status === "running") add("Left", view.progress?.left_seconds, "s");
  return found;
}

function verdictOf({ worth, notes }) {
  const lines = worth ?? [];
  if (!lines.length && !notes?.length) return [];
  return section("Was it worth it?", lines.length ? lines.map((line) => h("p.verdict", {}, line)) : h("p.empty", {}, "The verdict comes when the run has ended."),
    notes?.length ? h("ul.notes", {}, notes.map((line) => h("li", {}, line))) : null);
}

function settingsOf(view) {
  const flat = (name, value) => (value !== null && typeof value === "object" && !Array.isArray(value)
    ? Object.entries(value).flatMap(([key, inner]) => flat(name ? `${name}.${key}` : key, inner))
    : [[name, typeof value === "number" ? number(value) : Array.isArray(value) ? value.join(", ") : String(value ?? "–")]]);
  const list = (pairs) => h("dl.settings", {}, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  const command = view.command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
  const copy = h("button.small", { type: "button", onclick: () => navigator.clipboard.writeText(command).then(() => say("The command was copied.")) }, "Copy");
  return [
    h("div.command", {}, h("pre", { tabindex: 0, role: "region", "aria-label": "Command" }, command), copy),
    list([["script", view.script ?? "–"], ["system", view.system ?? "–"], ...flat("", view.settings ?? {})]),
    Object.keys(view.result ?? {}).length ? [h("h3", {}, "Result"), list(flat("", view.result))] : [],
  ];
}

function logTail({ id, signal }) {
  const chosen = h("select", { id: "log-of", onchange: () => refresh() });
  const text = h("pre.log", { tabindex: 0, role: "region", "aria-label": "The last lines of the log" });
  const size = h("span.unit");
  const refresh = oneAtATime(async () => {
    if (chosen.value === "") return;
    const answer = await get(query(runPath(id, `/log/${chosen.value}`), { lines: LOG_LINES }), signal);
    const follows = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    setText(text, answer.lines.join("\n") || "This worker has written nothing.");
    setText(size, `last ${number(answer.lines.length)} lines of ${bytes(answer.bytes)}`);
    if (follows) text.scrollTop = text.scrollHeight;
  }, signal);
  const take = (workers) => fill(chosen, workers.map((w) => [w.rank, w.machine]), () => {
    const value = chosen.value;
    queueMicrotask(() => {
      if (value !== "") chosen.value = value;
      refresh();
    });
    return workers.map((w) => h("option", { value: String(w.rank) }, `${w.rank} on ${w.machine}`));
  });
  return { node: h("div", {}, h("p.row", {}, h("label", { for: "log-of" }, "Worker"), chosen, size), text), refresh, take };
}
