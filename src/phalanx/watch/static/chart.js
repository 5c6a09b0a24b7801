// One chart: a card with its buttons, the drawing, a legend that shows values, and the same as a table.
import { fill, h, PARTS, partColour, say, scrolling, seriesColour, colour, setText, table } from "./dom.js";
import { clock, figure, isBytes, place, quantity } from "./format.js";

const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i);
const FONT = "11px ui-sans-serif, system-ui, sans-serif";
const CLOCK = [1e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const FROM_ZERO = ["throughput", "staleness", "cpu", "memory", "network_in", "network_out", "disk", "gpu", "rate"];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]];
const TABLE_ROWS = 40;
export const GLYPHS = { switch: "◆", fault: "✕", share: "■", alert: "▲", checkpoint: "●", note: "○" };

/** An average that leans on the last values: Adam's, without its bias at the start. */
export function smoothed(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    share = share * weight + 1 - weight;
    return sum / share;
  });
}

/** The index of the last value at or before `index` that is there. */
function lastAt(values, index) {
  for (let i = Math.min(index, values.length - 1); i >= 0; i--) if (values[i] !== null) return i;
  return -1;
}

export class Chart {
  constructor(group, chart) {
    this.group = group;
    this.hidden = new Set();
    this.drawing = null;
    this.heading = h("h3", {}, chart.title);
    this.now = h("span.unit");
    this.logged = h("button.small", { type: "button", "aria-pressed": "false", onclick: () => this.toggleLog() }, "log");
    this.opener = h("button.small", { type: "button", "aria-expanded": "false", onclick: () => this.toggleTable() }, "table");
    this.wide = h("button.small", { type: "button", "aria-pressed": "false", onclick: () => this.toggleWide() }, "larger");
    this.csv = h("a.small", { href: "#", onclick: (event) => this.saveCsv(event) }, "CSV");
    this.plot = h("div.plot", { tabindex: 0, role: "img", onkeydown: (event) => this.key(event) });
    this.tip = h("p.tip", { hidden: true });
    this.legend = h("ul.legend");
    this.values = h("div", { hidden: true });
    this.node = h("figure.card.chart", { "data-chart": chart.name },
      h("figcaption", {}, this.heading, this.now, h("span.tools", {}, this.logged, this.wide, this.opener, this.csv)),
      h("div.stage", {}, this.plot, this.tip), this.legend, this.values);
    this.log = false;
    this.sizes = new ResizeObserver(() => this.drawing?.setSize(this.size()));
    this.sizes.observe(this.plot);
    this.take(chart);
  }

  take(chart) {
    this.chart = chart;
    this.stacked = chart.name === "time_split";
    this.show();
  }

  /** Draws what is known; a new drawing is made only where its lines are others. */
  show() {
    const { chart } = this;
    setText(this.heading, chart.title);
    setText(this.now, chart.unit === "share" ? "%" : chart.unit);
    this.logged.hidden = !chart.log;
    for (const button of [this.logged, this.wide, this.opener, this.csv])
      button.setAttribute("aria-label", `${chart.title}: ${button.textContent}`);
    const weight = this.stacked ? 0 : this.group.smoothing;
    this.entries = chart.series.map((series, i) => this.entry(series, i, weight));
    const lines = this.lines(weight);
    const shape = JSON.stringify([lines.map((l) => l.key), this.log, this.group.by, this.group.theme]);
    const data = [chart.x_values, ...lines.map((l) => l.values)];
    if (this.drawing && this.shape === shape) this.drawing.setData(data);
    else this.draw(lines, data);
    this.shape = shape;
    this.showLegend();
    this.plot.setAttribute("aria-label", this.summary());
    if (!this.values.hidden) this.showTable();
  }

  entry(series, i, weight) {
    const total = series.name === "total" && series.rank == null;
    const stroke = this.stacked ? partColour(series.name.split(" ")[0]) : total ? colour("--ink") : seriesColour(this.offset(i));
    const dash = DASHES[Math.floor(this.offset(i) / 8) % DASHES.length];
    const values = weight ? smoothed(series.values, weight) : series.values;
    return { series, stroke, dash: this.stacked || total ? [] : dash, values, total };
  }

  /** A worker, machine or run has the same colour in all charts. */
  offset(i) {
    const { name, rank } = this.chart.series[i];
    return rank ?? this.group.places.get(name) ?? i;
  }

  lines(weight) {
    const shown = this.entries.filter((entry) => !this.hidden.has(entry.series.name));
    const clean = (values) => (this.log ? values.map((v) => (v > 0 ? v : null)) : values);
    if (this.stacked) {
      let below = null;
      const stack = [];
      for (const { series, stroke, values } of shown) {
        // What is hidden beside other parts takes no time of its own: it is a line, not an area.
        const area = PARTS.includes(series.name);
        if (area) below = values.map((v, i) => (v === null ? null : v + (below?.[i] ?? 0)));
        const key = `${series.name} ${stroke}`;
        stack.push(area ? { key, values: below, fill: stroke, width: 0 } : { key, values, stroke, width: 1.5, dash: [4, 3] });
      }
      return [...stack.filter((line) => line.fill).reverse(), ...stack.filter((line) => !line.fill)];
    }
    const found = [];
    for (const entry of shown) {
      const { series, stroke, dash, total } = entry;
      const key = `${series.name} ${stroke}`;
      if (series.low && series.high && !weight && shown.length < 4) {
        found.push({ key: `${key} high`, values: clean(series.high), stroke, width: 0 });
        found.push({ key: `${key} low`, values: clean(series.low), stroke, width: 0, band: stroke });
      } else if (weight && shown.length < 4) {
        found.push({ key: `${key} raw`, values: clean(series.values), stroke, width: 1, alpha: 0.25 });
      }
      found.push({ key, values: clean(entry.values), stroke, dash, width: total ? 2 : 1.5 });
    }
    return found;
  }

  draw(lines, data) {
    this.drawing?.destroy();
    const { group, chart } = this;
    const ink = colour("--soft");
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: ink, font: FONT, grid, ticks: { show: false }, gap: 4 };
    const time = group.by === "time";
    const options = {
      ...this.size(),
      legend: { show: false },
      padding: [16, 10, 0, 0],
      scales: {
        x: { time: false, range: () => group.range() },
        y: { distr: this.log ? 3 : 1, range: this.log ? undefined : (_, low, high) => this.heights(low, high) },
      },
      axes: [
        { ...axis, size: 28, gap: 7, space: 64, incrs: time ? CLOCK : undefined,
          values: (_, marks, __, ___, step) => marks.map((v) => (time ? clock(v, step) : place(v, "").trim())) },
        { ...axis, size: 62, space: 32, incrs: isBytes(chart.unit) ? POWERS : undefined,
          values: (_, marks) => marks.map((v) => (v === null ? "" : figure(v, chart.unit).replace(/\.0 %$/, " %"))) },
      ],
      series: [{}, ...lines.map((l) => ({
        stroke: l.stroke, width: l.width, dash: l.dash, fill: l.fill, alpha: l.alpha ?? 1,
        spanGaps: chart.name === "evaluation" || group.compares,
        points: { show: l.width > 1 && chart.x_values.length < 40, size: 5, fill: l.stroke },
      }))],
      bands: lines.flatMap((l, i) => (l.band ? [{ series: [i, i + 1], fill: l.band.replace("rgb(", "rgba(").replace(")", ", 0.16)") }] : [])),
      cursor: {
        sync: { key: group.key, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false },
        focus: { prox: -1 },
        y: false,
        points: { show: !this.stacked, size: 6 },
        bind: { dblclick: () => () => group.zoomTo(null) },
      },
      hooks: {
        draw: [(drawing) => this.drawMarks(drawing)],
        setCursor: [(drawing) => this.point(drawing)],
        setSelect: [(drawing) => {
          const { left, width } = drawing.select;
          if (width < 4) return;
          drawing.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          group.zoomTo([drawing.posToVal(left, "x"), drawing.posToVal(left + width, "x")]);
        }],
      },
    };
    this.drawing = new window.uPlot(options, data, this.plot);
  }

  size() {
    return { width: Math.max(120, this.plot.clientWidth), height: this.node.classList.contains("wide") ? 360 : 190 };
  }

  heights(low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.stacked) return [0, 1];
    const percents = this.chart.unit === "%" && high <= 100;
    const bottom = FROM_ZERO.includes(this.chart.name) || percents ? Math.min(0, low) : low - 0.06 * (high - low || Math.abs(low) || 1);
    const top = high + 0.06 * (high - bottom || 1);
    return [low >= 0 ? Math.max(0, bottom) : bottom, percents ? Math.min(100, top) : this.chart.unit === "share" ? Math.min(1, top) : top];
  }

  drawMarks(drawing) {
    const { ctx, bbox } = drawing;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px sans-serif`;
    ctx.textAlign = "center";
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    for (const mark of this.group.visibleMarks()) {
      const x = Math.round(drawing.valToPos(mark.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(`--mark-${mark.kind}`);
      ctx.globalAlpha = 0.6;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.fillText(GLYPHS[mark.kind] ?? "○", x, bbox.top - 4 * ratio);
    }
    ctx.restore();
  }

  /** Shows what the cursor is at: values in the legend, and a mark that is near. */
  point(drawing) {
    const { left, idx } = drawing.cursor;
    this.showValues(left >= 0 ? idx : null);
    const near = left >= 0 && this.group.visibleMarks()
      .map((mark) => ({ mark, far: Math.abs(drawing.valToPos(mark.at, "x") - left) }))
      .filter(({ far }) => far < 7).sort((a, b) => a.far - b.far)[0];
    this.tip.hidden = !near;
    if (near) setText(this.tip, `${GLYPHS[near.mark.kind] ?? "○"} ${near.mark.text}`);
  }

  showLegend() {
    fill(this.legend, [this.entries.map((e) => [e.series.name, e.stroke]), [...this.hidden]], () => this.entries.map((entry) => {
      const { name } = entry.series;
      const swatch = h("span.swatch");
      swatch.style.setProperty("--of", entry.stroke);
      swatch.style.borderTopStyle = entry.dash.length ? "dashed" : "solid";
      const button = h("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)), onclick: () => this.toggleSeries(name) },
        swatch, h("span.name", {}, name), h("span.value"));
      return h("li", {}, button);
    }));
    this.showValues(this.drawing?.cursor.idx ?? null);
  }

  showValues(index) {
    const { unit, x_values: places, x } = this.chart;
    const cells = this.legend.querySelectorAll(".value");
    this.entries.forEach((entry, i) => {
      const at = lastAt(entry.values, index ?? places.length - 1);
      if (cells[i]) setText(cells[i], at < 0 ? "–" : figure(entry.values[at], unit));
    });
    const shown = index === null || places[index] === undefined ? "" : ` at ${place(places[index], x.name)}`;
    setText(this.now, (unit === "share" ? "%" : unit) + shown);
  }

  /** The chart in a sentence, for who does not see it. */
  summary() {
    const { title, x_values: places, x, unit } = this.chart;
    const parts = this.entries.slice(0, 8).map(({ series, values }) => {
      const found = values.filter((v) => v !== null);
      if (!found.length) return `${series.name}: no values`;
      const [low, high] = [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))];
      return `${series.name}: last ${quantity(found.at(-1), unit)}, from ${quantity(low, unit)} to ${quantity(high, unit)}`;
    });
    const more = this.entries.length > 8 ? `; and ${this.entries.length - 8} more` : "";
    return `${title} up to ${place(places.at(-1), x.name)}. ${parts.join("; ")}${more}. The button table shows the values.`;
  }

  toggleLog() {
    this.log = !this.log;
    this.logged.setAttribute("aria-pressed", this.log);
    this.show();
  }

  toggleWide() {
    this.wide.setAttribute("aria-pressed", this.node.classList.toggle("wide"));
    this.drawing?.setSize(this.size());
  }

  toggleTable() {
    this.values.hidden = !this.values.hidden;
    this.opener.setAttribute("aria-expanded", !this.values.hidden);
    if (!this.values.hidden) this.showTable();
  }

  toggleSeries(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    const index = this.entries.findIndex((entry) => entry.series.name === name);
    this.show();
    this.legend.querySelectorAll("button")[index]?.focus();
  }

  showTable() {
    const { title, x_values: places, x, unit, series } = this.chart;
    const every = Math.max(1, Math.ceil(places.length / TABLE_ROWS));
    const rows = places.map((_, i) => i).filter((i) => (places.length - 1 - i) % every === 0);
    fill(this.values, [rows.map((i) => places[i]), series.map((s) => s.name)], () => scrolling(`${title} as a table`, table(title, [
      { title: x.unit ? `${x.name} (${x.unit})` : x.name, cell: (i) => place(places[i], x.name) },
      ...series.map((s) => ({ title: s.name, cell: (i) => quantity(s.values[i], unit) })),
    ], rows)));
  }

  saveCsv(event) {
    const address = this.group.csv?.(this.chart);
    this.csv.href = address ?? URL.createObjectURL(new Blob([this.csvText()], { type: "text/csv" }));
    this.csv.setAttribute("download", `${this.chart.name}.csv`);
    if (!address) setTimeout(() => URL.revokeObjectURL(this.csv.href), 10_000);
    event.stopPropagation();
  }

  csvText() {
    const { x, x_values: places, series } = this.chart;
    // A name that begins like a formula would be one in a spreadsheet.
    const quoted = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
    const rows = places.map((v, i) => [v, ...series.map((s) => s.values[i] ?? "")].join(","));
    return [[x.name, ...series.map((s) => s.name)].map(quoted).join(","), ...rows, ""].join("\r\n");
  }

  key(event) {
    const { drawing, group, chart } = this;
    const [first, last] = group.range();
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.key in steps) {
      const end = chart.x_values.length - 1;
      const index = Math.max(0, Math.min(end, (drawing.cursor.idx ?? end) + steps[event.key]));
      group.pointAt(chart.x_values[index]);
      const values = this.entries.map((e) => `${e.series.name} ${quantity(e.values[index], chart.unit)}`);
      say(`${place(chart.x_values[index], chart.x.name)}: ${values.slice(0, 6).join(", ")}`);
    } else if (event.key === "+" || event.key === "-") {
      const middle = chart.x_values[drawing.cursor.idx] ?? (first + last) / 2;
      const half = ((last - first) / 2) * (event.key === "+" ? 0.5 : 2);
      group.zoomTo([middle - half, middle + half]);
    } else if (event.key === "Escape") {
      group.zoomTo(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  close() {
    this.sizes.disconnect();
    this.drawing?.destroy();
  }
}
