// Each worker's steps as spans on a canvas, from the whole run down to one step.
import { get, oneAtATime, query, runPath } from "./api.js";
import { fill, h, partColour, scrolling, section, setText, table, colour } from "./dom.js";
import { clock, duration, number, percent } from "./format.js";

const ROW = 30;
const TALL = 24;
const TOP = 24;
const KEYS = { ArrowLeft: -0.2, ArrowRight: 0.2, PageUp: -1, PageDown: 1 };

export function buildTimeline(frame) {
  const timeline = new Timeline(frame);
  return { changed: () => timeline.follow(), state: (view) => timeline.takeState(view) };
}

class Timeline {
  constructor({ id, signal, body, view }) {
    Object.assign(this, { id, signal, end: Math.max(1e-3, view.seconds), marks: [] });
    this.range = null;
    this.answer = null;
    this.canvas = h("canvas.timeline", { tabindex: 0, role: "img", "aria-label": "Timeline", "aria-describedby": "timeline-words",
      onwheel: (event) => this.wheel(event), onkeydown: (event) => this.key(event), onpointerdown: (event) => this.press(event),
      onpointermove: (event) => this.move(event), onpointerleave: () => this.point(null), ondblclick: () => this.show(null) });
    this.names = h("ol.rank-names");
    this.legend = h("ul.legend.parts");
    this.words = h("p", { id: "timeline-words" });
    this.tip = h("p.tip", { hidden: true });
    this.shares = h("div");
    const button = (label, title, act) => h("button.small", { type: "button", "aria-label": title, title, onclick: act }, label);
    body.append(h("div.toolbar", { role: "group", "aria-label": "Zoom" },
      button("−", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)),
      button("◀", "Earlier", () => this.pan(-0.2)), button("▶", "Later", () => this.pan(0.2)),
      button("one step", "Zoom to one step", () => this.oneStep()), button("whole run", "Show the whole run", () => this.show(null))),
    section("Steps of each worker", this.legend, h("div.timeline-box", {}, this.names, h("div.stage", {}, this.canvas, this.tip)), this.words,
      h("p.unit", {}, "Wheel or + and − zoom, dragging or arrows move, Home shows the whole run, Enter one step.")),
    section("Shares of the time in view", this.shares));
    this.load = oneAtATime(() => this.read(), signal);
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    addEventListener("phalanx-theme", () => this.draw(), { signal });
    this.load();
  }

  view() {
    return this.range ?? [0, this.end];
  }

  takeState(view) {
    this.end = Math.max(this.end, view.seconds);
    this.marks = view.marks;
  }

  /** A page that shows the whole run, or its end, goes with it. */
  follow() {
    if (this.range && this.range[1] < this.shown - 1e-6) return;
    this.load();
  }

  async read() {
    const [first, last] = this.range ?? [null, null];
    this.answer = await get(query(runPath(this.id, "/timeline"), { from: first, to: last, points: Math.min(2000, this.canvas.clientWidth || 800) }), this.signal);
    for (const rank of this.answer.ranks) rank.bins = binsOf(rank.spans, this.answer.kinds);
    if (!this.range) this.shown = this.end = Math.max(this.answer.to, 1e-3);
    this.draw();
    this.showShares();
  }

  show(range) {
    if (range) {
      const length = Math.min(this.end, Math.max(1e-4, range[1] - range[0]));
      const first = Math.min(Math.max(0, range[0]), this.end - length);
      this.range = length >= this.end ? null : [first, first + length];
    } else {
      this.range = null;
    }
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), 120);
  }

  zoom(factor, at = 0.5) {
    const [first, last] = this.view();
    const middle = first + at * (last - first);
    this.show([middle - (middle - first) * factor, middle + (last - middle) * factor]);
  }

  pan(share) {
    const [first, last] = this.view();
    const by = share * (last - first);
    this.show([first + by, last + by]);
  }

  /** Goes to the step in the middle of the view, nearer each time until single steps are known. */
  async oneStep() {
    for (let tries = 0; tries < 12; tries++) {
      const [first, last] = this.view();
      const middle = (first + last) / 2;
      const spans = this.answer?.ranks[0]?.spans.filter((s) => s.step !== null) ?? [];
      const near = spans.reduce((best, s) => (!best || Math.abs(s.start - middle) < Math.abs(best.start - middle) ? s : best), null);
      if (near) {
        const own = this.answer.ranks.flatMap((rank) => rank.spans.filter((s) => s.step === near.step));
        const [start, end] = [Math.min(...own.map((s) => s.start)), Math.max(...own.map((s) => s.end))];
        return this.show([start - 0.05 * (end - start), end + 0.05 * (end - start)]);
      }
      this.range = [middle - (last - first) / 20, middle + (last - first) / 20];
      await this.read();
    }
    return undefined;
  }

  wheel(event) {
    event.preventDefault();
    if (event.deltaX && Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.canvas.clientWidth);
    else this.zoom(1.0018 ** Math.max(-300, Math.min(300, event.deltaY)), event.offsetX / this.canvas.clientWidth);
  }

  key(event) {
    if (event.key in KEYS) this.pan(KEYS[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Home" || event.key === "0") this.show(null);
    else if (event.key === "Enter") this.oneStep();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.held = { x: event.offsetX, view: this.view() };
    this.canvas.onpointerup = () => (this.held = null);
  }

  move(event) {
    if (this.held) {
      const [first, last] = this.held.view;
      const by = ((this.held.x - event.offsetX) / this.canvas.clientWidth) * (last - first);
      if (Math.abs(this.held.x - event.offsetX) > 3) this.show([first + by, last + by]);
    } else {
      this.point(event);
    }
  }

  point(event) {
    const rank = event && this.answer?.ranks[Math.floor((event.offsetY - TOP) / ROW)];
    const [first, last] = this.view();
    const at = rank && first + (event.offsetX / this.canvas.clientWidth) * (last - first);
    const here = (spans) => spans[0].start <= at && at < spans.at(-1).end;
    const bin = this.answer?.exact === false && rank?.bins.find(here);
    const span = this.answer?.exact && rank?.spans.find((s) => s.start <= at && at < s.end);
    this.tip.hidden = !span && !bin;
    if (this.tip.hidden) return;
    const long = (s) => `${s.kind} ${bin ? percent((s.end - s.start) / (bin.at(-1).end - bin[0].start), 0) : duration(s.end - s.start)}`;
    const what = bin ? bin.map(long).join(", ") : `${span.step === null ? "" : `step ${number(span.step)}, `}${long(span)}`;
    setText(this.tip, `worker ${rank.rank} on ${rank.machine} at ${clock(at, (last - first) / 100)}: ${what}`);
  }

  draw() {
    const { answer, canvas } = this;
    if (!answer) return;
    const ratio = devicePixelRatio || 1;
    const width = Math.max(150, canvas.parentElement.clientWidth);
    const height = TOP + ROW * answer.ranks.length;
    canvas.style.height = `${height}px`;
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    fill(this.names, answer.ranks.map((r) => [r.rank, r.machine]), () => answer.ranks.map((r) => h("li", { title: `worker ${r.rank} on ${r.machine}` }, h("b", {}, r.rank), " ", r.machine)));
    fill(this.legend, answer.kinds, () => answer.kinds.map((kind) => {
      const swatch = h("span.swatch.block");
      swatch.style.setProperty("--of", partColour(kind));
      return h("li", {}, swatch, kind);
    }));
    const [first, last] = this.view();
    const x = (time) => ((time - first) / (last - first)) * width;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    this.drawAxis(ctx, x, width, height);
    answer.ranks.forEach((rank, i) => {
      const top = TOP + i * ROW + 3;
      if (answer.exact) this.drawSteps(ctx, rank.spans, x, top);
      else for (const bin of rank.bins) this.drawBin(ctx, bin, x, top);
    });
    this.drawMarks(ctx, x, height);
    this.describe(first, last);
  }

  drawSteps(ctx, spans, x, top) {
    for (const hidden of [false, true]) {
      for (const span of spans) {
        if ((span.kind === "hidden") !== hidden) continue;
        const [left, width] = [x(span.start), x(span.end) - x(span.start)];
        ctx.fillStyle = partColour(span.kind);
        // What is hidden beside other parts lies below them.
        ctx.fillRect(left, hidden ? top + TALL - 4 : top, Math.max(0.4, width - (width > 6 ? 1 : 0)), hidden ? 4 : TALL);
      }
    }
  }

  /** From far out the parts of a short time lie above each other, as high as their shares. */
  drawBin(ctx, bin, x, top) {
    const [left, right] = [x(bin[0].start), x(bin.at(-1).end)];
    let y = top;
    for (const span of bin) {
      const height = (TALL * (span.end - span.start)) / (bin.at(-1).end - bin[0].start);
      ctx.fillStyle = partColour(span.kind);
      ctx.fillRect(left, y, right - left + 0.6, height + 0.3);
      y += height;
    }
  }

  drawAxis(ctx, x, width, height) {
    const [first, last] = this.view();
    const rough = ((last - first) * 90) / width;
    const step = [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 43200, 86400].find((s) => s >= rough) ?? 172800;
    ctx.font = "11px ui-sans-serif, system-ui, sans-serif";
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
      ctx.fillStyle = colour("--line");
      ctx.fillRect(x(at), 16, 1, height);
      ctx.fillStyle = colour("--soft");
      ctx.fillText(clock(at, step), x(at) + 3, 13);
    }
  }

  drawMarks(ctx, x, height) {
    for (const mark of this.marks) {
      ctx.fillStyle = colour(`--mark-${mark.kind}`);
      ctx.fillRect(x(mark.time) - 0.5, 16, 1.5, height);
    }
  }

  describe(first, last) {
    const steps = new Set(this.answer.ranks.flatMap((r) => r.spans.filter((s) => s.step !== null && s.end > first && s.start < last).map((s) => s.step)));
    const what = steps.size === 0 ? "shares of the time, too far out for single steps" : steps.size === 1 ? `step ${number([...steps][0])}` : `${number(steps.size)} steps`;
    setText(this.words, `In view: ${clock(first, (last - first) / 100)} to ${clock(last, (last - first) / 100)} (${duration(last - first)}), ${what}.`);
    this.canvas.setAttribute("aria-label", `Timeline of ${this.answer.ranks.length} workers. ${this.words.textContent} The table below has the shares.`);
  }

  showShares() {
    const { ranks, kinds } = this.answer;
    const [first, last] = this.view();
    const rows = ranks.map((rank) => {
      const sums = Object.fromEntries(kinds.map((kind) => [kind, 0]));
      for (const s of rank.spans) sums[s.kind] += Math.max(0, Math.min(s.end, last) - Math.max(s.start, first));
      return { rank, sums, total: Object.values(sums).reduce((a, b) => a + b, 0) - (sums.hidden ?? 0) };
    });
    fill(this.shares, rows.map((r) => [r.rank.rank, r.sums]), () => scrolling("Shares of the time", table("Shares of the time in view for each worker", [
      { title: "Worker", cell: ({ rank }) => `${rank.rank} on ${rank.machine}` },
      ...kinds.map((kind) => ({ title: kind, cell: (row) => (row.total ? percent(row.sums[kind] / row.total) : "–") }))], rows)));
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
