// The list of runs, with a filter, and the comparison of any two or more.
import { get, listen, oneAtATime, query } from "./api.js";
import { button, fill, h, section, seriesColour, setText, small, table } from "./dom.js";
import { day, duration, number, percent } from "./format.js";
import { Group } from "./group.js";
import { badge } from "./run.js";

const MOST = 12;
const round = (value) => (value == null ? null : Number(value.toPrecision(4)));
const named = (machines) => (machines.length > 3 ? `${machines.slice(0, 2).join(", ")} and ${machines.length - 2} more` : machines.join(", "));
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

/** How far an outcome was from its prediction. */
function off(predicted, outcome) {
  const share = predicted && outcome ? outcome / predicted - 1 : null;
  return share === null ? "" : `outcome ${share < 0 ? "−" : "+"}${percent(Math.abs(share), 0)}`;
}

export function openRuns(main, signal, knowsPool) {
  document.title = "Runs · Phalanx";
  const ticked = new Set();
  let found = { runs: [], studies: [], more: false };
  let older = [];
  const choice = (id) => h("select", { id, onchange: () => show() }, h("option", { value: "" }, "any"));
  const [status, study] = [choice("status"), choice("study")];
  const words = h("input", { type: "search", id: "filter", placeholder: "name, script, strategy, machine", "data-key": "/", oninput: () => show() });
  const compare = h("a.button", { role: "link", "aria-disabled": "true" }, "Compare");
  const shown = h("p.unit", { role: "status" });
  const list = h("div.cards");
  const more = button("Show older runs", () => readOlder(), { hidden: true });
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, "Runs"), h("p.facts", {}, "Tick two or more to compare them.")),
    h("div.toolbar", { role: "search" }, h("label", { for: "filter" }, "Filter"), words, h("label", { for: "status" }, "Status"), status,
      h("label", { for: "study" }, "Study"), study, compare, shown), section("All runs", list, more));

  const tick = (id) => {
    if (!ticked.delete(id)) ticked.add(id);
    const enough = ticked.size > 1 && ticked.size <= MOST;
    setText(compare, ticked.size > MOST ? `Compare at most ${MOST}` : ticked.size ? `Compare ${ticked.size} runs` : "Compare");
    compare.setAttribute("aria-disabled", String(!enough));
    compare.toggleAttribute("href", enough);
    if (enough) compare.href = `#/compare/${[...ticked].map(encodeURIComponent).join(",")}`;
  };
  const offer = (select, values) => {
    const { value } = select;
    fill(select, values, () => ["", ...values].map((name) => h("option", { value: name }, name || "any")));
    if (values.includes(value)) select.value = value;
  };
  const show = () => {
    const runs = [...found.runs, ...older];
    offer(status, [...new Set(runs.map((run) => run.status))].sort());
    offer(study, found.studies.map((each) => each.id));
    const wanted = words.value.toLowerCase().split(/\s+/);
    const text = (run) => [run.id, run.name, run.script, run.strategy, ...run.machines].join(" ").toLowerCase();
    const visible = runs.filter((run) => wanted.every((word) => text(run).includes(word)) &&
      (!status.value || run.status === status.value) && (!study.value || run.study === study.value));
    setText(shown, visible.length === runs.length ? `${runs.length} runs` : `${visible.length} of ${runs.length} runs`);
    more.hidden = !found.more;
    fill(list, visible, () => (visible.length ? runTable(visible) : h("p.empty", {}, runs.length ? "No run matches the filter." : "There are no runs yet. Start one: phalanx run SCRIPT --watch")));
  };
  const runTable = (runs) => table("Runs, newest first", [{ title: "Run", cell: (r) => h("span.pick", {},
    h("input", { type: "checkbox", checked: ticked.has(r.id), "aria-label": `Compare ${r.id}`, onchange: () => tick(r.id) }),
    h("span", {}, h("a", { href: `#/run/${encodeURIComponent(r.id)}` }, r.name), small(r.study ? `${r.id} · study ${r.study}` : r.id), small(r.worth))) }, ...COLUMNS], runs);
  const take = (answer) => {
    // The newest may have moved on since older ones were read.
    older = older.filter((run) => !answer.runs.some((newer) => newer.id === run.id));
    found = older.length ? { ...answer, more: found.more } : answer;
    show();
  };
  const readOlder = async () => {
    const answer = await get(query("runs", { before: [...found.runs, ...older].at(-1).id }), signal);
    older.push(...answer.runs);
    found.more = answer.more;
    show();
  };
  oneAtATime(async () => take(await get("runs", signal)), signal)();
  listen("stream", signal, { state: take, pool: knowsPool });
}

export function openCompare(main, ids, signal) {
  document.title = "Compare · Phalanx";
  const figures = h("div");
  const group = new Group({ path: "compare", values: { runs: ids.join(",") }, signal, compares: true, pick: ({ rows, charts }) => {
    // Those that are called the same are numbered, as in the charts.
    const same = (name, end) => rows.slice(0, end).filter((row) => row.name === name).length;
    rows.forEach((row, i) => (row.label = same(row.name) > 1 ? `${row.name} (${same(row.name, i + 1)})` : row.name));
    group.places = new Map(rows.map((row, i) => [row.label, i]));
    return charts;
  } });
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, `Compare ${ids.length} runs`),
    h("p.facts", {}, h("a", { href: "#/runs" }, "All runs"))), section("Figures side by side", figures), group.toolbar(), group.node);
  group.loaded = ({ rows }) => {
    fill(figures, rows, () => sideBySide(rows));
    clearTimeout(group.timer);
    if (rows.some((row) => row.status === "running") && !signal.aborted) group.timer = setTimeout(group.refresh, 3000);
  };
  group.refresh();
}

/** One column a run; a figure that no run has is no row. */
function sideBySide(runs) {
  const worth = { title: "Was it worth it?", cell: (r) => (r.worth ? h("span.words", {}, r.worth) : null) };
  const rows = [...COLUMNS, worth].filter(({ cell }) => runs.some((run) => ![null, "–"].includes([cell(run)].flat()[0])));
  return table("Figures of the runs side by side", [{ title: "Figure", cell: (row) => row.title },
    ...runs.map((run, i) => ({ title: run.label, remark: run.id, mark: seriesColour(i), cell: (row) => row.cell(run) }))], rows);
}
