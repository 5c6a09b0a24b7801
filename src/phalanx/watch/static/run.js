// The pages of one run share a head: what it is, and how far it is. The page "Run" shows how it trains.
import { get, listen, oneAtATime, query, runPath } from "./api.js";
import { button, fill, h, say, section, setText, small, table, tile } from "./dom.js";
import { day, duration, number, percent, quantity } from "./format.js";
import { Group, markList } from "./group.js";

const SIGNS = { running: "●", done: "✓", failed: "✕", lost: "✕" };
const LINES = 200;
export const badge = (status) => h("span.badge", { "data-status": status }, h("span", { "aria-hidden": "true" }, SIGNS[status] ?? "■"), ` ${status}`);

/** Opens a page of a run: `build(frame)` returns what it does with each state, and when something was added. */
export async function openRun(main, id, signal, build) {
  const view = await get(runPath(id), signal);
  const body = h("div");
  const facts = h("div");
  const progress = progressLine();
  document.title = `${view.title} · Phalanx`;
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, view.title), facts, progress.node), body);
  const page = build({ id, body, signal, view });
  const take = (state) => {
    const { status, workers, machines, began, strategy } = state;
    fill(facts, [status, workers.length, machines.length, began, strategy], () => h("p.facts", {}, badge(status), strategy && h("span", {}, strategy),
      h("span", {}, `${count(workers, "worker")} on ${count(machines, "machine")}`), h("span", {}, `began ${day(began)}`), h("code", {}, id)));
    progress.take(state);
    page.state(state);
  };
  take(view);
  page.changed();
  listen(runPath(id, "/stream"), signal, { state: take, charts: page.changed });
}

const count = (list, noun) => `${number(list.length)} ${noun}${list.length === 1 ? "" : "s"}`;

function progressLine() {
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress of the run" });
  const words = h("p.so-far");
  let said = -1;
  const take = ({ progress: { done, total, share, left_seconds: left, epoch, epochs }, status, seconds, building }) => {
    const running = status === "running";
    bar.hidden = share == null;
    bar.value = share ?? 0;
    setText(words, [
      share != null && percent(share), epoch && `epoch ${epoch}${epochs ? ` of ${epochs}` : ""}`,
      done != null && `${number(done)}${total ? ` of ${number(total)}` : ""} samples`,
      running ? `${duration(seconds)} so far` : `took ${duration(seconds)}`, running && left != null && `${duration(left)} left`,
      building != null && `reading the history: ${percent(building, 0)}`,
    ].filter(Boolean).join(" · "));
    const tenth = Math.floor((share ?? 0) * 10);
    if (tenth > said && said >= 0) say(`${tenth * 10} percent of the run is done.`);
    said = tenth;
  };
  return { node: h("div.progress", {}, bar, words), take };
}

export function buildRun({ id, body, signal, view: first }) {
  const tiles = h("dl.tiles", { "aria-label": "Figures now" });
  const group = new Group({ path: runPath(id, "/charts"), signal });
  const [marks, workers, verdict, settings, result] = ["div", "div", "div", "div", "div"].map((name) => h(name));
  const log = logTail(id, signal);
  body.append(verdict, tiles, group.toolbar(), h("div.columns", {}, group.node, h("aside.side", { "aria-label": "Events and workers" },
    section("What happened", marks), section("Workers", workers))), section("Log", log.node), section("Command and settings", settings, result));
  let [view, charts] = [first, []];
  const showTiles = (found = figures(view, charts)) => fill(tiles, found, () => found.map((figure) => tile(...figure)));
  group.loaded = (answer) => {
    charts = answer.charts;
    showTiles();
  };
  return {
    changed: () => [group, log].forEach((part) => part.refresh()),
    state: (state) => {
      view = state;
      showTiles();
      fill(verdict, [view.worth, view.notes], () => verdictOf(view));
      fill(marks, view.marks, () => markList(group, view.marks));
      group.takeMarks(view.marks);
      fill(workers, view.workers, () => workerTable(view.workers));
      fill(settings, [view.command, view.settings], () => settingsOf(view));
      fill(result, view.result, () => (Object.keys(view.result).length ? [h("h3", {}, "Figures"), pairs(view.result)] : []));
      log.take(view.workers);
    },
  };
}

/** The newest figures: [name, value, remark]. */
function figures({ status, seconds, progress, result }, charts) {
  const find = (name) => charts.find((chart) => chart.name === name);
  const last = (values) => values?.findLast((v) => v !== null);
  const newest = (title, name, unit = "", remark = "") => [title, quantity(last(find(name)?.series[0].values), unit), remark];
  const { series = [], unit } = find("evaluation") ?? {};
  const evaluations = series.slice(0, 2).map(({ name, values }) => [name, quantity(last(values), unit), `best ${quantity(values.reduce((a, b) => Math.max(a, b ?? a)), unit)}`]);
  const running = status === "running";
  const loss = result.loss == null ? newest("Training loss", "loss") : ["Training loss", number(result.loss), "last epoch"];
  return [loss, ...evaluations, ["Throughput", number(result.samples_per_second), "samples/s"], newest("Learning rate", "rate"),
    newest("Gradient norm", "gradient_norm"), [running ? "Running for" : "Duration", duration(seconds)],
    ...(running ? [["Left", duration(progress.left_seconds)]] : [])].filter(([, value]) => value !== "–");
}

function workerTable(workers) {
  return table("Workers, one by one", [
    { title: "Worker", cell: (w) => [w.rank, small(w.machine)] }, { title: "State", text: true, cell: (w) => [w.state, small(w.device)] },
    { title: "Samples/s", cell: (w) => [number(w.samples_per_second), small(w.share == null ? "" : percent(w.share, 0))] },
    { title: "Waits", cell: (w) => [percent(w.waiting, 0), small(w.staleness ? `${number(Number(w.staleness.toPrecision(2)))} stale` : "")] }], workers);
}

function verdictOf({ worth, notes }) {
  if (!worth.length && !notes.length) return [];
  const lines = worth.length ? worth.map((line) => h("p.verdict", {}, line)) : h("p.empty", {}, "The verdict comes later.");
  return section("Was it worth it?", lines, notes.length > 0 && h("ul.notes", {}, notes.map((line) => h("li", {}, line))));
}

function pairs(values) {
  const text = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));
  return h("dl.settings", {}, Object.entries(values).map(([name, value]) => h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, text(value)))));
}

function settingsOf({ command, settings, script, system }) {
  const words = command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
  const copy = button("Copy", () => navigator.clipboard.writeText(words).then(() => say("The command was copied.")));
  return [h("div.command", {}, h("pre", { tabindex: 0, role: "region", "aria-label": "Command" }, words), copy), pairs({ script, system, ...settings })];
}

function logTail(id, signal) {
  const chosen = h("select", { id: "log-of", onchange: () => refresh() });
  const text = h("pre.log", { tabindex: 0, role: "region", "aria-label": "The last lines of the log" });
  const size = h("span.unit");
  const refresh = oneAtATime(async () => {
    if (chosen.value === "") return;
    const answer = await get(query(runPath(id, `/log/${chosen.value}`), { lines: LINES }), signal);
    const follows = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    setText(text, answer.lines.join("\n") || "This worker has written nothing.");
    setText(size, `last ${number(answer.lines.length)} lines of ${quantity(answer.bytes, "B")}`);
    if (follows) text.scrollTop = text.scrollHeight;
  }, signal);
  const take = (workers) => {
    const { value } = chosen;
    fill(chosen, workers.map((w) => [w.rank, w.machine]), () => workers.map((w) => h("option", { value: String(w.rank) }, `${w.rank} on ${w.machine}`)));
    if (value !== "" && value !== chosen.value) chosen.value = value;
  };
  return { node: h("div", {}, h("p.row", {}, h("label", { for: "log-of" }, "Worker"), chosen, size), text), refresh, take };
}
