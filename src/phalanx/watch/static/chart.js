// One chart: a card with its buttons, the drawing, a legend that shows values, and the same as a table.
import { button, colour, fill, h, PARTS, partColour, say, SERIES, seriesColour, setText, swatch, table } from "./dom.js";
import { clock, figure, isBytes, place, quantity } from "./format.js";

const FONT = "11px ui-sans-serif, system-ui, sans-serif";
const SECONDS = [1e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);
const FROM_ZERO = ["throughput", "staleness", "cpu", "memory", "network_in", "network_out", "disk", "gpu", "rate"];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const TABLE_ROWS = 40;
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
const GLYPHS = { switch: "◆", fault: "✕", share: "■", alert: "▲", checkpoint: "●" };
export const glyph = (kind) => GLYPHS[kind] ?? "○";

/** An average that leans on the last values: Adam's, without its bias at the start. */
function smoothed(values, weight) {
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    share = share * weight + 1 - weight;
    return sum / share;
  });
}

/** The index of the last value at or before `index` that is there. */
function lastAt(values, index) {
  let i = Math.min(index, values.length - 1);
  while (i >= 0 && values[i] === null) i--;
  return i;
}

export class Chart {
  constructor(group, chart) {
    Object.assign(this, { group, chart, hidden: new Set(), log: false, drawing: null, shape: "" });
    this.stacked = chart.name === "time_split";
    this.unit = h("span.unit");
    this.logged = button("log", () => this.toggleLog(), { "aria-pressed": "false" });
    this.wide = button("larger", () => this.toggleWide(), { "aria-pressed": "false" });
    this.opener = button("table", () => this.toggleTable(), { "aria-expanded": "false" });
    this.csv = h("a.small", { href: "#", download: `${chart.name}.csv`, onclick: () => this.saveCsv() }, "CSV");
    this.tools = [this.logged, this.wide, this.opener, this.csv];
    this.plot = h("div.plot", { tabindex: 0, role: "img", onkeydown: (event) => this.key(event) });
    this.tip = h("p.tip", { hidden: true });
    this.legend = h("ul.legend");
    this.values = h("div", { hidden: true });
    this.node = h("figure.card.chart", { "data-chart": chart.name },
      h("figcaption", {}, h("h3", {}, chart.title), this.unit, h("span.tools", {}, this.tools)),
      h("div.stage", {}, this.plot, this.tip), this.legend, this.values);
    for (const tool of this.tools) tool.setAttribute("aria-label", `${chart.title}: ${tool.textContent}`);
    this.sizes = new ResizeObserver(() => this.drawing?.setSize(this.size()));
    this.sizes.observe(this.plot);
    this.show();
  }

  /** Draws `chart`; a new drawing is made only where its lines are others. */
  show(chart = this.chart) {
    const { group } = this;
    this.chart = chart;
    this.logged.hidden = !chart.log;
    this.entries = chart.series.map((series, i) => this.entry(series, i));
    const lines = this.lines(this.entries.filter((entry) => !this.hidden.has(entry.name)));
    const shape = JSON.stringify([lines.map((line) => line.key), this.log, group.by, group.theme]);
    const data = [chart.x_values, ...lines.map((line) => line.values)];
    if (this.shape === shape) this.drawing.setData(data);
    else this.draw(lines, data);
    this.shape = shape;
    this.showLegend();
    this.plot.setAttribute("aria-label", this.summary());
    this.showTable();
  }

  /** A series with its look: a worker, machine or run has the same in all charts. */
  entry(series, i) {
    const { name, rank, values } = series;
    const look = rank ?? this.group.places.get(name) ?? i;
    const total = name === "total" && rank == null;
    const stroke = this.stacked ? partColour(name.split(" ")[0]) : total ? colour("--ink") : seriesColour(look);
    const dash = this.stacked || total ? [] : DASHES[Math.floor(look / SERIES) % DASHES.length];
    const weight = this.stacked ? 0 : this.group.smoothing;
    return { name, series, stroke, dash, total, values: weight ? smoothed(values, weight) : values };
  }

  /** What is drawn, in this order. */
  lines(shown) {
    if (this.stacked) return stack(shown);
    const clean = (values) => (this.log ? values.map((v) => (v > 0 ? v : null)) : values);
    return shown.flatMap(({ name, series, stroke, dash, total, values }) => {
      const key = `${name} ${stroke}`;
      const line = { key, values: clean(values), stroke, dash, width: total ? 2 : 1.5 };
      if (shown.length > 3) return [line];
      if (this.group.smoothing) return [{ key: `${key} raw`, values: clean(series.values), stroke, width: 1, alpha: 0.25 }, line];
      if (!series.low || !series.high) return [line];
      return [{ key: `${key} high`, values: clean(series.high), stroke, width: 0 },
        { key: `${key} low`, values: clean(series.low), stroke, width: 0, band: stroke.replace(")", ", 0.16)").replace("rgb(", "rgba(") }, line];
    });
  }

  draw(lines, data) {
    this.drawing?.destroy();
    const { group, chart, log } = this;
    const time = group.by === "time";
    const axis = { stroke: colour("--soft"), font: FONT, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    this.drawing = new window.uPlot({
      ...this.size(), legend: { show: false }, padding: [16, 10, 0, 0],
      scales: {
        x: { time: false, range: () => group.range() },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, low, high) => this.heights(low, high) },
      },
      axes: [
        { ...axis, size: 28, gap: 7, space: 64, incrs: time ? SECONDS : undefined,
          values: (_, marks, __, ___, step) => marks.map((v) => (time ? clock(v, step) : place(v, "").trim())) },
        { ...axis, size: 62, gap: 4, space: 32, incrs: isBytes(chart.unit) ? POWERS : undefined,
          values: (_, marks) => marks.map((v) => (v === null ? "" : figure(v, chart.unit).replace(/\.0 %$/, " %"))) },
      ],
      series: [{}, ...lines.map(({ stroke, width, dash, fill: area, alpha = 1 }) => ({
        stroke, width, dash, alpha, fill: area, spanGaps: chart.name.startsWith("evaluation") || group.compares,
        points: { show: width > 1 && chart.x_values.length < 40, size: 5, fill: stroke },
      }))],
      bands: lines.flatMap((line, i) => (line.band ? [{ series: [i, i + 1], fill: line.band }] : [])),
      cursor: {
        sync: { key: group.key, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false }, y: false, points: { show: !this.stacked, size: 6 }, bind: { dblclick: () => () => group.zoomTo(null) },
      },
      hooks: { draw: [(drawing) => this.drawMarks(drawing)], setCursor: [(drawing) => this.point(drawing)], setSelect: [(drawing) => this.select(drawing)] },
    }, data, this.plot);
  }

  size() { return { width: Math.max(120, this.plot.clientWidth), height: this.node.classList.contains("wide") ? 360 : 190 }; }

  heights(low, high) {
    if (low === null || this.stacked) return [0, 1];
    const { name, unit } = this.chart;
    const most = unit === "share" ? 1 : unit === "%" && high <= 100 ? 100 : Infinity;
    const fromZero = low >= 0 && (FROM_ZERO.includes(name) || unit === "%");
    const room = 0.06 * (high - (fromZero ? 0 : low) || Math.abs(high) || 1);
    return [fromZero ? 0 : low >= 0 ? Math.max(0, low - room) : low - room, Math.max(high, Math.min(most, high + room))];
  }

  select(drawing) {
    const { left, width } = drawing.select;
    if (width < 4) return;
    drawing.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.group.zoomTo([drawing.posToVal(left, "x"), drawing.posToVal(left + width, "x")]);
  }

  drawMarks(drawing) {
    const { ctx, bbox } = drawing;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px sans-serif`;
    ctx.textAlign = "center";
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    for (const mark of this.group.visibleMarks()) {
      const x = Math.round(drawing.valToPos(mark.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(`--mark-${mark.kind}`);
      ctx.stroke(new Path2D(`M${x} ${bbox.top} v${bbox.height}`));
      ctx.fillText(glyph(mark.kind), x, bbox.top - 4 * ratio);
    }
    ctx.restore();
  }

  /** Shows what the cursor is at: values in the legend, and a mark that is near. */
  point(drawing) {
    const { left, idx } = drawing.cursor;
    this.showValues(left >= 0 ? idx : null);
    const far = (mark) => Math.abs(drawing.valToPos(mark.at, "x") - left);
    const near = left >= 0 && this.group.visibleMarks().sort((a, b) => far(a) - far(b))[0];
    this.tip.hidden = !near || far(near) > 7 || !this.plot.matches(":hover, :focus");
    if (!this.tip.hidden) setText(this.tip, `${glyph(near.kind)} ${near.text}`);
  }

  showLegend() {
    fill(this.legend, [this.entries.map((entry) => [entry.name, entry.stroke]), [...this.hidden]], () => this.entries.map(({ name, stroke, dash }) =>
      h("li", {}, h("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)), onclick: () => this.toggleSeries(name) },
        swatch(stroke, dash.length ? ".dashed" : ""), h("span.name", {}, name), h("span.value")))));
    this.showValues(this.drawing.cursor.idx ?? null);
  }

  showValues(index) {
    const { unit, x_values: places, x } = this.chart;
    const cells = this.legend.querySelectorAll(".value");
    this.entries.forEach(({ values }, i) => setText(cells[i], figure(values[lastAt(values, index ?? places.length - 1)], unit)));
    setText(this.unit, (unit === "share" ? "%" : unit) + (places[index] === undefined ? "" : ` at ${place(places[index], x.name)}`));
  }

  /** The chart in a sentence, for who does not see it. */
  summary() {
    const { title, x_values: places, x, unit } = this.chart;
    const parts = this.entries.slice(0, 8).map(({ name, values }) => {
      const found = values.filter((v) => v !== null);
      const [low, high] = [found.reduce((a, b) => Math.min(a, b), Infinity), found.reduce((a, b) => Math.max(a, b), -Infinity)];
      return `${name}: ${found.length ? `last ${quantity(found.at(-1), unit)}, from ${quantity(low, unit)} to ${quantity(high, unit)}` : "no values"}`;
    });
    const more = this.entries.length > 8 ? `; and ${this.entries.length - 8} more` : "";
    return `${title} up to ${place(places.at(-1), x.name)}. ${parts.join("; ")}${more}. The button table shows the values.`;
  }

  toggleLog() {
    this.logged.setAttribute("aria-pressed", (this.log = !this.log));
    this.show();
  }

  toggleWide() {
    this.wide.setAttribute("aria-pressed", this.node.classList.toggle("wide"));
    this.drawing.setSize(this.size());
  }

  toggleTable() {
    this.opener.setAttribute("aria-expanded", this.values.hidden);
    this.values.hidden = !this.values.hidden;
    this.showTable();
  }

  toggleSeries(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.show();
  }

  showTable() {
    if (this.values.hidden) return;
    const { title, x_values: places, x, unit, series } = this.chart;
    const every = Math.max(1, Math.ceil(places.length / TABLE_ROWS));
    const rows = places.map((_, i) => i).filter((i) => (places.length - 1 - i) % every === 0);
    fill(this.values, [rows.map((i) => places[i]), series.map((s) => s.name)], () => table(`${title} as a table${unit && `, in ${unit}`}`, [
      { title: x.name, cell: (i) => place(places[i], x.name) }, ...series.map((s) => ({ title: s.name, cell: (i) => figure(s.values[i], unit) }))], rows));
  }

  saveCsv() {
    const { x, x_values: places, series } = this.chart;
    // A name that begins like a formula would be one in a spreadsheet.
    const quoted = (text) => `"${text.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
    const columns = [{ name: x.name, values: places }, ...series.flatMap((s) => [s,
      ...(s.low && s.high ? [{ name: `${s.name} low`, values: s.low }, { name: `${s.name} high`, values: s.high }] : [])])];
    const lines = [columns.map((c) => quoted(c.name)), ...places.map((_, i) => columns.map((c) => c.values[i] ?? ""))];
    URL.revokeObjectURL(this.csv.href);
    this.csv.href = URL.createObjectURL(new Blob([lines.map((line) => `${line.join(",")}\r\n`).join("")], { type: "text/csv" }));
  }

  key(event) {
    const { drawing, group, chart: { x_values: places, x, unit } } = this;
    const [first, last] = group.range();
    const end = places.length - 1;
    const at = drawing.cursor.idx ?? end;
    if (event.key in KEYS) {
      const index = Math.max(0, Math.min(end, at + KEYS[event.key]));
      group.pointAt(places[index]);
      say(`${place(places[index], x.name)}: ${this.entries.slice(0, 6).map((e) => `${e.name} ${quantity(e.values[index], unit)}`).join(", ")}`);
    } else if ("+-".includes(event.key)) {
      const half = (last - first) * (event.key === "+" ? 0.25 : 1);
      group.zoomTo([places[at] - half, places[at] + half]);
    } else if (event.key === "Escape") group.zoomTo(null);
    else return;
    event.preventDefault();
  }

  close() {
    this.sizes.disconnect();
    this.drawing.destroy();
  }
}

/** Parts as areas upon each other. What is hidden beside other parts takes no time of its own: it is a line. */
function stack(shown) {
  let below = null;
  const lines = shown.map(({ name, stroke, values }) => {
    const key = `${name} ${stroke}`;
    if (!PARTS.includes(name)) return { key, values, stroke, width: 1.5, dash: [4, 3] };
    below = values.map((v, i) => (v === null ? null : v + (below?.[i] ?? 0)));
    return { key, values: below, fill: stroke, width: 0 };
  });
  return [...lines.filter((line) => line.fill).reverse(), ...lines.filter((line) => !line.fill)];
}
