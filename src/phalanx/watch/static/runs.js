// The list of runs, with a filter, and the comparison of any two or more.
import { get, listen, oneAtATime, query } from "./api.js";
import { fill, h, scrolling, section, setText, table } from "./dom.js";
import { day, duration, number, percent, quantity } from "./format.js";
import { Group } from "./group.js";
import { badge } from "./run.js";

const MOST_COMPARED = 12;
const small = (text) => (text ? h("small", {}, text) : null);
const COLUMNS = [
  { title: "Status", text: true, cell: (r) => badge(r.status) },
  { title: "Strategy", text: true, cell: (r) => [r.strategy ?? "–", small(r.script)] },
  { title: "Workers", text: true, cell: (r) => [number(r.workers), small(named(r.machines))] },
  { title: "Began", cell: (r) => day(r.began) },
  { title: "Duration", cell: (r) => [duration(r.seconds), small(r.epochs && `${number(r.epochs)} epochs`)] },
  { title: "Accuracy", cell: (r) => percent(r.accuracy, 2) },
  { title: "Loss", cell: (r) => number(round(r.loss)) },
  { title: "Samples/s", cell: (r) => number(round(r.samples_per_second)) },
  { title: "Predicted", cell: (r) => [number(round(r.predicted_samples_per_second)), small(off(r.predicted_samples_per_second, r.samples_per_second))] },
];
const named = (machines) => (machines.length > 3 ? `${machines.slice(0, 2).join(", ")} and ${machines.length - 2} more` : machines.join(", "));
const round = (value) => (value == null ? null : Number(value.toPrecision(4)));

/** How far an outcome was from its prediction. */
function off(value, outcome) {
  if (!value || !outcome) return "";
  const share = outcome / value - 1;
  return `outcome ${share < 0 ? "−" : "+"}${percent(Math.abs(share), 0)}`;
}

export function openRuns(main, signal, knowsPool) {
  document.title = "Runs · Phalanx";
  const ticked = new Set();
  let found = { runs: [], studies: [], more: false };
  let older = [];
  const words = h("input", { type: "search", id: "filter", placeholder: "name, script, strategy, machine", "data-key": "/", oninput: () => show() });
  const status = h("select", { id: "status", onchange: () => show() }, h("option", { value: "" }, "any"));
  const study = h("select", { id: "study", onchange: () => show() }, h("option", { value: "" }, "any"));
  const compare = h("a.button", { role: "link", "aria-disabled": "true" }, "Compare");
  const shown = h("p.unit", { role: "status" });
  const list = h("div.cards");
  const more = h("button.small", { type: "button", hidden: true, onclick: () => readOlder() }, "Show older runs");
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, "Runs"), h("p.facts", {}, "Tick two or more to compare them.")),
    h("div.toolbar", { role: "search" }, h("label", { for: "filter" }, "Filter"), words, h("label", { for: "status" }, "Status"), status,
      h("label", { for: "study" }, "Study"), study, compare, shown), section("All runs", list, more));

  const tick = (id, on) => {
    if (on) ticked.add(id);
    else ticked.delete(id);
    const enough = ticked.size > 1 && ticked.size <= MOST_COMPARED;
    setText(compare, ticked.size > MOST_COMPARED ? `Compare at most ${MOST_COMPARED}` : ticked.size ? `Compare ${ticked.size} runs` : "Compare");
    compare.setAttribute("aria-disabled", String(!enough));
    if (enough) compare.href = `#/compare/${[...ticked].map(encodeURIComponent).join(",")}`;
    else compare.removeAttribute("href");
  };
  const matches = (run) => {
    const text = [run.id, run.name, run.script, run.strategy, ...run.machines].join(" ").toLowerCase();
    return words.value.toLowerCase().split(/\s+/).every((word) => text.includes(word)) &&
      (!status.value || run.status === status.value) && (!study.value || run.study === study.value);
  };
  const show = () => {
    const runs = [...found.runs, ...older];
    const choices = (node, values) => fill(node, values, () => ["", ...values].map((v) => h("option", { value: v, selected: v === node.value }, v || "any")));
    choices(status, [...new Set(runs.map((r) => r.status))].sort());
    choices(study, found.studies.map((s) => s.id ?? s));
    const visible = runs.filter(matches);
    setText(shown, visible.length === runs.length ? `${runs.length} runs` : `${visible.length} of ${runs.length} runs`);
    more.hidden = !found.more;
    fill(list, visible, () => (visible.length ? scrolling("Runs", runTable(visible)) : h("p.empty", {}, runs.length ? "No run matches the filter." : "There are no runs yet. Start one: phalanx run SCRIPT --watch")));
  };
  const runTable = (runs) => table("Runs, newest first", [
    { title: "Run", cell: (r) => h("span.pick", {}, h("input", { type: "checkbox", checked: ticked.has(r.id), "aria-label": `Compare ${r.name}, ${r.id}`, onchange: (event) => tick(r.id, event.target.checked) }),
      h("span", {}, h("a", { href: `#/run/${encodeURIComponent(r.id)}` }, r.name), h("small", {}, r.study ? `${r.id} · study ${r.study}` : r.id), r.worth && h("small.worth", {}, r.worth))) },
    ...COLUMNS], runs);
  const take = (answer) => {
    // The newest may have moved on since older ones were read.
    const known = new Set(answer.runs.map((run) => run.id));
    older = older.filter((run) => !known.has(run.id));
    found = older.length ? { ...answer, more: found.more } : answer;
    show();
  };
  const readOlder = async () => {
    const last = [...found.runs, ...older].at(-1);
    const answer = await get(query("runs", { before: last.id }), signal);
    older.push(...answer.runs);
    found.more = answer.more;
    show();
  };
  const refresh = oneAtATime(async () => take(await get("runs", signal)), signal);
  refresh();
  signal.addEventListener("abort", listen("stream", { state: take, pool: knowsPool, opened: refresh }));
}

export function openCompare(main, ids, signal) {
  document.title = "Compare · Phalanx";
  const figures = h("div");
  const group = new Group({ path: "compare", values: { runs: ids.join(",") }, signal, compares: true, pick: (answer) => {
    // Those that are called the same are numbered, as in the charts.
    const titles = answer.rows.map((r) => r.title);
    answer.rows.forEach((r, i) => (r.name = titles.filter((title) => title === r.title).length < 2 ? r.title : `${r.title} (${titles.slice(0, i + 1).filter((title) => title === r.title).length})`));
    group.places = new Map(answer.rows.map((r, i) => [r.name, i]));
    return answer.charts;
  } });
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, `Compare ${ids.length} runs`),
    h("p.facts", {}, h("a", { href: "#/runs" }, "All runs"))), section("Figures side by side", figures), group.toolbar(), group.node);
  group.loaded = (answer) => fill(figures, answer.rows, () => scrolling("Figures side by side", sideBySide(answer.rows)));
  group.refresh();
  const timer = setInterval(() => group.refresh(), 5000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** One column a run; a figure that no run has is no row. */
function sideBySide(runs) {
  const figure = (title, name, unit) => ({ title, cell: ({ outcome, predicted }) => {
    const expected = predicted[name];
    return outcome[name] == null && expected == null ? null
      : [quantity(round(outcome[name]), unit), small(expected == null ? "" : `predicted ${quantity(round(expected), unit)}, ${off(expected, outcome[name])}`)];
  } });
  const rows = [
    { title: "Status", cell: (r) => badge(r.status) }, { title: "Strategy", cell: (r) => r.strategy }, { title: "System", cell: (r) => r.system },
    { title: "Workers", cell: (r) => [number(r.workers), small(named(r.machines))] },
    figure("Duration", "seconds", "s"), figure("Throughput", "samples_per_second", "samples/s"), figure("One step", "step_seconds", "s"),
    figure("Accuracy", "accuracy", "share"), figure("Loss", "loss", ""), figure("Epochs", "epochs", ""),
  ].filter((row) => runs.some((r) => row.cell(r) != null));
  return table("Figures of the runs side by side", [{ title: "Figure", cell: (row) => row.title },
    ...runs.map((r) => ({ title: r.name, cell: (row) => row.cell(r), remark: r.id }))], rows);
}
