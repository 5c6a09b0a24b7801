// Charts that share one x axis, one cursor, one zoom, and the choices above them.
import { get, oneAtATime, query } from "./api.js";
import { Chart, glyph } from "./chart.js";
import { button, h, setText } from "./dom.js";
import { place } from "./format.js";

const ORDER = ["loss", "evaluation", "evaluation_loss", "rate", "gradient_norm", "throughput", "time_split", "staleness", "metrics"];
const AXES = { time: "Time", step: "Step", epoch: "Epoch" };
// Checkpoints and notes would crowd out the others: these are only in the list.
export const DRAWN = ["switch", "fault", "share", "alert"];
let groups = 0;

export class Group {
  /** Charts come from `path` with `values`; `pick(answer)` takes them out; `axes`: those to choose from. */
  constructor({ path, signal, values = {}, axes = Object.keys(AXES), compares = false, pick = (answer) => answer.charts }) {
    Object.assign(this, { path, signal, values, axes, compares, pick, smoothing: 0, zoom: null, whole: null, full: [0, 1], marks: [], showsMarks: true, theme: 0 });
    this.key = `charts-${groups++}`;
    const kept = localStorage.getItem("phalanx-axis");
    this.by = axes.includes(kept) ? kept : axes[0];
    [this.places, this.charts] = [new Map(), new Map()];
    this.empty = h("p.empty", { role: "status" }, "Reading …");
    this.node = h("div.charts", {}, this.empty);
    this.refresh = oneAtATime(() => this.load(), signal);
    addEventListener("phalanx-theme", () => this.show(this.theme++), { signal });
    signal.addEventListener("abort", () => this.charts.forEach((chart) => chart.close()));
  }

  async load() {
    const { by, zoom } = this;
    const answer = await get(query(this.path, { ...this.values, by: this.axes.length > 1 ? by : null, from: zoom?.[0], to: zoom?.[1], points: 600 }), this.signal);
    // The axis may have been changed while the answer was under way.
    if (by === this.by) this.take(this.pick(answer).filter((chart) => chart.series.some((s) => s.values.some((v) => v !== null))));
    this.loaded?.(answer);
  }

  take(charts) {
    this.empty.hidden = charts.length > 0;
    setText(this.empty, "There are no figures yet.");
    const ends = charts.flatMap((chart) => [chart.x_values[0], chart.x_values.at(-1)]);
    const low = Math.min(...ends);
    this.full = charts.length ? [low, Math.max(...ends) > low ? Math.max(...ends) : low + 1] : [0, 1];
    const gone = [...this.charts.keys()].filter((name) => !charts.some((chart) => chart.name === name));
    for (const name of gone) {
      this.charts.get(name).close();
      this.charts.get(name).node.remove();
      this.charts.delete(name);
    }
    const before = this.charts.size;
    for (const chart of charts) {
      if (this.charts.has(chart.name)) this.charts.get(chart.name).show(chart);
      else this.charts.set(chart.name, new Chart(this, chart));
    }
    const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
    if (this.charts.size !== before) this.node.append(...[...this.charts].sort(([a], [b]) => rank(a) - rank(b)).map(([, chart]) => chart.node));
  }

  range() { return this.zoom ?? this.full; }

  zoomTo(range) {
    if (!this.zoom) this.whole = this.full;
    const kept = range && [Math.max(this.whole[0], range[0]), Math.min(this.whole[1], range[1])];
    const all = !kept || kept[1] <= kept[0] || (kept[0] === this.whole[0] && kept[1] === this.whole[1]);
    this.zoom = all ? null : kept;
    this.reset.hidden = all;
    this.show();
    this.refresh();
  }

  show() { this.charts.forEach((chart) => chart.show()); }

  /** Marks with the place that each has on the axis. */
  visibleMarks() {
    const drawn = this.showsMarks ? this.marks.filter((mark) => DRAWN.includes(mark.kind) && mark[this.by] != null) : [];
    return drawn.map((mark) => ({ ...mark, at: mark[this.by] }));
  }

  takeMarks(marks, shown = this.showsMarks) {
    if (shown === this.showsMarks && JSON.stringify(marks) === JSON.stringify(this.marks)) return;
    Object.assign(this, { marks, showsMarks: shown });
    this.charts.forEach((chart) => chart.drawing.redraw(false, false));
  }

  /** Puts the cursor of all charts to one place. */
  pointAt(value) { this.charts.forEach(({ drawing }) => drawing.setCursor({ left: drawing.valToPos(value, "x"), top: 10 })); }

  toolbar() {
    const axis = h("fieldset.choice", {}, h("legend.hidden", {}, "Horizontal axis"), this.axes.map((name) => h("label", {},
      h("input", { type: "radio", name: this.key, value: name, checked: name === this.by, onchange: () => this.setAxis(name) }), h("span", {}, AXES[name]))));
    const output = h("output", {}, "0.00");
    const smooth = (event) => {
      this.smoothing = Number(event.target.value);
      setText(output, this.smoothing.toFixed(2));
      this.show();
    };
    const log = (event) => this.charts.forEach((chart) => chart.chart.log && chart.log !== event.target.checked && chart.toggleLog());
    const marks = (event) => this.takeMarks(this.marks, event.target.checked);
    this.reset = button("Whole run", () => this.zoomTo(null), { hidden: true, "data-key": "0" });
    return h("div.toolbar", { role: "group", "aria-label": "How charts are drawn" }, this.axes.length > 1 && axis,
      h("label", {}, "Smoothing", h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "data-key": "s", oninput: smooth }), output),
      this.axes.length > 1 && h("label", {}, h("input", { type: "checkbox", "data-key": "l", onchange: log }), "Log scale"),
      !this.compares && h("label", {}, h("input", { type: "checkbox", checked: true, onchange: marks }), "Marks"), this.reset);
  }

  setAxis(name) {
    localStorage.setItem("phalanx-axis", name);
    Object.assign(this, { by: name, zoom: null });
    this.reset.hidden = true;
    this.refresh();
  }
}

/** The marks of a run as a list beside its charts, the newest first. */
export function markList(group, marks) {
  if (!marks.length) return h("p.empty", {}, "Nothing but training: no switch, fault, change of shares or alert.");
  return h("ol.marks", { "aria-label": "What happened, newest first" }, marks.toReversed().map((mark) => {
    const at = () => mark[group.by] != null && group.pointAt(mark[group.by]);
    return h("li", {}, h("button", { type: "button", onmouseenter: at, onfocus: at, onclick: at },
      h("span.glyph", { "data-kind": mark.kind, "aria-hidden": "true" }, glyph(mark.kind)),
      h("span.when", {}, place(mark.time, "time")), h("span.what", {}, !mark.text.startsWith(mark.kind) && [h("b", {}, mark.kind), " "], mark.text)));
  }));
}
