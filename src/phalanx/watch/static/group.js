// Charts that share one x axis, one cursor, one zoom, and the choices above them.
import { Chart, GLYPHS } from "./chart.js";
import { get, oneAtATime, query } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { place } from "./format.js";

const ORDER = ["loss", "evaluation", "evaluation_loss", "rate", "gradient_norm", "throughput", "time_split", "staleness", "metrics"];
const AXES = { time: "Time", step: "Step", epoch: "Epoch" };
let groups = 0;

export class Group {
  /** `path` is where charts come from; `csv(chart)` is the address of one as CSV; `axes` may be chosen. */
  constructor({ path, signal, values = {}, csv = null, axes = ["time", "step", "epoch"], compares = false, pick = (answer) => answer.charts }) {
    Object.assign(this, { path, signal, values, csv, axes, compares, pick });
    this.key = `charts-${groups++}`;
    this.by = axes.includes(localStorage.getItem("phalanx-axis")) ? localStorage.getItem("phalanx-axis") : axes[0];
    this.smoothing = 0;
    this.zoom = null;
    this.marks = [];
    this.showsMarks = true;
    this.theme = 0;
    this.places = new Map();
    this.charts = new Map();
    this.node = h("div.charts");
    this.empty = h("p.empty", {}, "Reading …");
    this.node.append(this.empty);
    this.refresh = oneAtATime(() => this.load(), signal);
    addEventListener("phalanx-theme", () => this.repaint(), { signal });
    signal.addEventListener("abort", () => this.charts.forEach((chart) => chart.close()));
  }

  async load() {
    const [first, last] = this.zoom ?? [null, null];
    const by = this.axes.length > 1 ? this.by : null;
    const answer = await get(query(this.path, { ...this.values, by, from: first, to: last, points: 600 }), this.signal);
    // The axis may have been changed while the answer was under way.
    if (by === null || by === this.by) this.take(this.pick(answer));
    this.loaded?.(answer);
  }

  take(charts) {
    const filled = charts.filter((chart) => chart.x_values.length && chart.series.some((s) => s.values.some((v) => v !== null)));
    this.empty.hidden = filled.length > 0;
    setText(this.empty, "There are no figures yet.");
    this.full = extent(filled);
    const names = new Set(filled.map((chart) => chart.name));
    for (const [name, chart] of this.charts) {
      if (names.has(name)) continue;
      chart.close();
      chart.node.remove();
      this.charts.delete(name);
    }
    const before = this.charts.size;
    for (const chart of filled) {
      if (this.charts.has(chart.name)) this.charts.get(chart.name).take(chart);
      else this.charts.set(chart.name, new Chart(this, chart));
    }
    const rank = (name) => (ORDER.indexOf(name) + ORDER.length + 1) % (ORDER.length + 1);
    if (this.charts.size !== before)
      this.node.append(...[...this.charts].sort(([a], [b]) => rank(a) - rank(b)).map(([, chart]) => chart.node));
  }

  range() {
    return this.zoom ?? this.full ?? [0, 1];
  }

  zoomTo(range) {
    const [low, high] = this.full ?? [0, 1];
    const kept = range && [Math.max(Math.min(low, this.unzoomed?.[0] ?? low), range[0]), Math.min(this.unzoomed?.[1] ?? high, range[1])];
    if (!this.zoom) this.unzoomed = this.full;
    this.zoom = kept && kept[1] > kept[0] ? kept : null;
    if (this.reset) this.reset.hidden = !this.zoom;
    this.charts.forEach((chart) => chart.show());
    this.refresh();
  }

  repaint() {
    this.theme++;
    this.charts.forEach((chart) => chart.show());
  }

  /** Marks with the place that each has on the axis; checkpoints and notes would crowd out the others. */
  visibleMarks() {
    if (!this.showsMarks) return [];
    return this.marks.filter((mark) => !["checkpoint", "note"].includes(mark.kind)).map((mark) => ({ ...mark, at: mark[this.by] })).filter((mark) => mark.at !== null && mark.at !== undefined);
  }

  takeMarks(marks) {
    this.marks = marks;
    this.charts.forEach((chart) => chart.drawing?.redraw(false, false));
  }

  /** Puts the cursor of all charts to one place. */
  pointAt(value) {
    this.charts.forEach(({ drawing }) => {
      drawing?.setCursor({ left: drawing.valToPos(value, "x"), top: 10 });
    });
  }

  toolbar() {
    const axis = h("fieldset.choice", {}, h("legend.hidden", {}, "Horizontal axis"), this.axes.map((name) => h("label", {},
      h("input", { type: "radio", name: this.key, value: name, checked: name === this.by, onchange: () => this.setAxis(name) }), h("span", {}, AXES[name]))));
    const output = h("output", {}, "0.00");
    const smoothing = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "data-key": "s", oninput: () => {
      this.smoothing = Number(smoothing.value);
      setText(output, this.smoothing.toFixed(2));
      this.charts.forEach((chart) => chart.show());
    } });
    const marks = h("input", { type: "checkbox", checked: true, onchange: () => {
      this.showsMarks = marks.checked;
      this.charts.forEach((chart) => chart.drawing?.redraw(false, false));
    } });
    this.logs = h("input", { type: "checkbox", "data-key": "l", onchange: () => this.charts.forEach((chart) => {
      if (chart.chart.log && chart.log !== this.logs.checked) chart.toggleLog();
    }) });
    this.reset = h("button.small", { type: "button", hidden: true, "data-key": "0", onclick: () => this.zoomTo(null) }, "Whole run");
    return h("div.toolbar", { role: "group", "aria-label": "How charts are drawn" },
      this.axes.length > 1 && axis, h("label", {}, "Smoothing", smoothing, output), h("label", {}, this.logs, "Log scale"),
      this.compares ? null : h("label", {}, marks, "Marks"), this.reset);
  }

  setAxis(name) {
    this.by = name;
    localStorage.setItem("phalanx-axis", name);
    this.zoomTo(null);
  }
}

function extent(charts) {
  const ends = charts.flatMap((chart) => [chart.x_values[0], chart.x_values.at(-1)]);
  if (!ends.length) return [0, 1];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

/** The marks of a run as a list beside its charts. */
export function markList(group, marks, empty) {
  const list = h("ol.marks");
  const kinds = [...new Set(marks.map((mark) => mark.kind))];
  fill(list, marks, () => [...marks].reverse().map((mark) => {
    const glyph = h("span.glyph", { "data-kind": mark.kind, "aria-hidden": "true" }, GLYPHS[mark.kind] ?? "○");
    const at = () => mark[group.by] !== null && group.pointAt(mark[group.by]);
    return h("li", {}, h("button", { type: "button", onmouseenter: at, onfocus: at, onclick: at },
      glyph, h("span.when", {}, place(mark.time, "time")), h("span.what", {}, h("b", {}, mark.kind), " ", mark.text)));
  }));
  return kinds.length ? list : h("p.empty", {}, empty);
}
