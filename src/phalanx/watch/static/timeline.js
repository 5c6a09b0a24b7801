// Each worker's steps as spans on a canvas, from the whole run down to one step.
import { get, oneAtATime, query, runPath } from "./api.js";
import { button, colour, fill, h, partColour, section, setText, sized, swatch, table } from "./dom.js";
import { clock, duration, number, percent } from "./format.js";
import { DRAWN } from "./group.js";

const [ROW, TALL, TOP] = [30, 24, 24];
const TICKS = [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 43200, 86400, 604800];
const PAN = { ArrowLeft: -0.2, ArrowRight: 0.2, PageUp: -1, PageDown: 1 };
const ZOOM = { "+": 0.5, "=": 0.5, "-": 2 };
const length = (spans) => spans.at(-1).end - spans[0].start;

export function buildTimeline(frame) {
  const timeline = new Timeline(frame);
  return { changed: () => timeline.follow(), state: (view) => (timeline.marks = view.marks) };
}

class Timeline {
  constructor({ id, signal, body, view }) {
    Object.assign(this, { signal, path: runPath(id, "/timeline"), end: Math.max(1e-3, view.seconds ?? 0), range: null, answer: null, marks: [], held: null });
    this.canvas = h("canvas.timeline", { tabindex: 0, role: "img", onwheel: (event) => this.wheel(event), onkeydown: (event) => this.key(event),
      onpointerdown: (event) => this.press(event), onpointermove: (event) => this.move(event), onpointerup: () => (this.held = null),
      onpointerleave: () => (this.tip.hidden = true), ondblclick: () => this.show(null) });
    [this.names, this.legend, this.shares] = [h("ol.row-names"), h("ul.legend.parts"), h("div")];
    [this.words, this.tip] = [h("p", { id: "timeline-words" }), h("p.tip", { hidden: true })];
    const tool = (label, title, act) => button(label, act, { "aria-label": title, title });
    body.append(h("div.toolbar", { role: "group", "aria-label": "Zoom" }, tool("−", "Zoom out", () => this.zoom(2)), tool("+", "Zoom in", () => this.zoom(0.5)),
      tool("◀", "Earlier", () => this.pan(-0.2)), tool("▶", "Later", () => this.pan(0.2)), button("One step", () => this.oneStep()), button("Whole run", () => this.show(null))),
    section("Steps of each worker", this.legend, h("div.named", {}, this.names, h("div.stage", {}, this.canvas, this.tip)), this.words,
      h("p.unit", {}, "Wheel or + and − zoom, dragging or arrows move, Home shows the whole run, Enter one step.")),
    section("Shares of the time in view", this.shares));
    this.load = oneAtATime(() => this.read(), signal);
    for (const event of ["phalanx-theme", "resize"]) addEventListener(event, () => this.draw(), { signal });
  }

  view() { return this.range ?? [0, this.end]; }

  /** What shows the whole run, or its end, goes with it. */
  follow() { if (!this.range || !this.answer || this.range[1] >= this.end - 1e-6) this.load(); }

  async read() {
    const { range } = this;
    const answer = await get(query(this.path, { from: range?.[0], to: range?.[1], points: 400 }), this.signal);
    for (const rank of answer.ranks) rank.bins = answer.exact ? [] : binsOf(rank.spans, answer.kinds);
    this.answer = answer;
    if (!range) this.end = Math.max(answer.to, 1e-3);
    this.draw();
    this.showShares();
  }

  show(range) {
    const long = range && Math.max(1e-4, range[1] - range[0]);
    const first = range && Math.min(Math.max(0, range[0]), this.end - long);
    this.range = range && long < this.end ? [first, first + long] : null;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(this.load, 120);
  }

  zoom(factor, at = 0.5) {
    const [first, last] = this.view();
    const middle = first + at * (last - first);
    this.show([middle - (middle - first) * factor, middle + (last - middle) * factor]);
  }

  pan(share, [first, last] = this.view()) { this.show([first, last].map((end) => end + share * (last - first))); }

  /** Goes to the step in the middle of the view, nearer each time until single steps are known. */
  async oneStep() {
    for (let tries = 0; tries < 12 && !this.answer?.exact; tries++) {
      const [first, last] = this.view();
      this.range = [first + 0.45 * (last - first), first + 0.55 * (last - first)];
      await this.read();
    }
    const [first, last] = this.view();
    const far = (span) => Math.abs(span.start + span.end - first - last);
    const steps = this.answer.ranks.flatMap((rank) => rank.spans.map((span) => ({ ...span, of: rank.rank }))).filter((span) => span.step !== null);
    steps.sort((a, b) => far(a) - far(b));
    if (!steps.length) return;
    const own = steps.filter((span) => span.step === steps[0].step && span.of === steps[0].of);
    const [start, end] = [Math.min(...own.map((span) => span.start)), Math.max(...own.map((span) => span.end))];
    this.show([start - 0.02 * (end - start), end + 0.02 * (end - start)]);
  }

  wheel(event) {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.canvas.clientWidth);
    else this.zoom(1.0018 ** Math.max(-300, Math.min(300, event.deltaY)), event.offsetX / this.canvas.clientWidth);
  }

  key(event) {
    if (event.key in PAN) this.pan(PAN[event.key]);
    else if (event.key in ZOOM) this.zoom(ZOOM[event.key]);
    else if (event.key === "Home") this.show(null);
    else if (event.key === "Enter") this.oneStep();
    else return;
    event.preventDefault();
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.held = { x: event.offsetX, view: this.view() };
  }

  move(event) {
    if (!this.held) this.point(event);
    else if (Math.abs(this.held.x - event.offsetX) > 3) this.pan((this.held.x - event.offsetX) / this.canvas.clientWidth, this.held.view);
  }

  point({ offsetX, offsetY }) {
    const rank = this.answer?.ranks[Math.floor((offsetY - TOP) / ROW)];
    const [first, last] = this.view();
    const at = first + (offsetX / this.canvas.clientWidth) * (last - first);
    const bin = rank?.bins.find((spans) => spans[0].start <= at && at < spans.at(-1).end);
    const span = !bin && rank?.spans.findLast((s) => s.start <= at && at < s.end);
    this.tip.hidden = !bin && !span;
    if (this.tip.hidden) return;
    const what = bin ? bin.map((s) => `${s.kind} ${percent((s.end - s.start) / length(bin), 0)}`).join(", ")
      : `${span.step === null ? "" : `step ${number(span.step)}, `}${span.kind} ${duration(span.end - span.start)}`;
    setText(this.tip, `worker ${rank.rank} on ${rank.machine} at ${clock(at, (last - first) / 100)}: ${what}`);
  }

  draw() {
    const { answer, canvas } = this;
    if (!answer) return;
    const { ranks, kinds } = answer;
    fill(this.names, ranks.map((r) => [r.rank, r.machine]), () => ranks.map((r) => h("li", { title: `worker ${r.rank} on ${r.machine}` }, h("b", {}, r.rank), " ", r.machine)));
    fill(this.legend, kinds, () => kinds.map((kind) => h("li", {}, swatch(partColour(kind), ".block"), kind)));
    const [first, last] = this.view();
    const width = Math.max(120, canvas.parentElement.clientWidth);
    const x = (time) => ((time - first) / (last - first)) * width;
    const ctx = sized(canvas, width, TOP + ROW * ranks.length);
    this.drawAxis(ctx, x, width);
    ranks.forEach((rank, i) => {
      const top = TOP + i * ROW + 3;
      for (const bin of rank.bins) drawBin(ctx, bin, x, top);
      for (const hidden of [false, true]) drawSteps(ctx, answer.exact ? rank.spans.filter((s) => (s.kind === "hidden") === hidden) : [], x, hidden ? top + TALL - 4 : top, hidden ? 4 : TALL);
    });
    for (const mark of this.marks.filter(({ kind }) => DRAWN.includes(kind))) {
      ctx.fillStyle = colour(`--mark-${mark.kind}`);
      ctx.fillRect(x(mark.time) - 0.5, 16, 1.5, TOP + ROW * ranks.length);
    }
    this.describe(first, last);
  }

  drawAxis(ctx, x, width) {
    const [first, last] = this.view();
    const step = TICKS.find((tick) => tick >= ((last - first) * 90) / width) ?? last - first;
    ctx.font = "11px ui-sans-serif, system-ui, sans-serif";
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
      ctx.fillStyle = colour("--line");
      ctx.fillRect(x(at), 16, 1, 1e4);
      ctx.fillStyle = colour("--soft");
      if (x(at) < width - 30) ctx.fillText(clock(at, step), x(at) + 3, 13);
    }
  }

  describe(first, last) {
    const seen = this.answer.ranks.flatMap((rank) => rank.spans.filter((s) => s.step !== null && s.end > first && s.start < last && s.end - s.start < last - first));
    const steps = [...new Set(seen.map((s) => s.step))];
    const middle = seen.filter((s) => s.start <= (first + last) / 2).at(-1)?.step ?? steps[0];
    const what = !this.answer.exact ? "shares of the time, too far out for single steps" : steps.length > 3 ? `${number(steps.length)} steps` : `step ${number(middle)}`;
    setText(this.words, `In view: ${clock(first, (last - first) / 100)} to ${clock(last, (last - first) / 100)} (${duration(last - first)}), ${what}.`);
    this.canvas.setAttribute("aria-label", `Timeline of ${this.answer.ranks.length} workers. ${this.words.textContent} The table below has the shares.`);
  }

  showShares() {
    const { ranks, kinds } = this.answer;
    const [first, last] = this.view();
    const rows = ranks.map(({ rank, machine, spans }) => {
      const sums = Object.fromEntries(kinds.map((kind) => [kind, 0]));
      for (const s of spans) sums[s.kind] += Math.max(0, Math.min(s.end, last) - Math.max(s.start, first));
      // What is hidden beside other parts takes no time of its own.
      const total = Object.entries(sums).reduce((sum, [kind, seconds]) => sum + (kind === "hidden" ? 0 : seconds), 0);
      return { name: `${rank} on ${machine}`, sums, total };
    });
    fill(this.shares, rows, () => table("Shares of the time in view for each worker", [{ title: "Worker", cell: (row) => row.name },
      ...kinds.map((kind) => ({ title: kind, cell: (row) => (row.total ? percent(row.sums[kind] / row.total) : "–") }))], rows));
  }
}

function drawSteps(ctx, spans, x, top, tall) {
  for (const span of spans) {
    const width = x(span.end) - x(span.start);
    ctx.fillStyle = partColour(span.kind);
    ctx.fillRect(x(span.start), top, Math.max(0.4, width - (width > 6 ? 1 : 0)), tall);
  }
}

/** From far out the parts of a short time lie above each other, as high as their shares. */
function drawBin(ctx, bin, x, top) {
  let y = top;
  for (const span of bin) {
    const tall = (TALL * (span.end - span.start)) / length(bin);
    ctx.fillStyle = partColour(span.kind);
    ctx.fillRect(x(bin[0].start), y, x(bin.at(-1).end) - x(bin[0].start) + 0.6, tall + 0.3);
    y += tall;
  }
}

/** Cuts the spans seen from far into the short times that they are of: in each, kinds come in their order. */
function binsOf(spans, kinds) {
  const bins = [];
  let before = Infinity;
  for (const span of spans) {
    const place = kinds.indexOf(span.kind);
    if (place <= before) bins.push([]);
    bins.at(-1).push(span);
    before = place;
  }
  return bins;
}
