// Machines and their totals, now and over time, as a heat strip, and who waits for whom.
import { listen, runPath } from "./api.js";
import { fill, h, scrolling, section, setText, table, colour } from "./dom.js";
import { bytes, clock, duration, number, quantity } from "./format.js";
import { Group } from "./group.js";

const FIGURES = { cpu: ["CPU busy", "%"], memory: ["Memory", "B"], network_in: ["Received", "B/s"], network_out: ["Sent", "B/s"], disk: ["Disk", "B/s"], gpu: ["GPU busy", "%"] };
const CPU_PARTS = ["user", "system", "wait", "steal"];
const ROW = 18;

export function buildCluster(frame) {
  const view = clusterView(frame.body, runPath(frame.id, "/cluster"), frame.signal);
  return { changed: view.refresh, state: (state) => view.group.takeMarks(state.marks) };
}

/** The machines of `phalanx watch --pool`, which may be idle. */
export function openPool(main, signal) {
  document.title = "Pool · Phalanx";
  const body = h("div");
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, "Pool"), h("p.facts", {}, "The machines of the pool, whether or not a run uses them.")), body);
  const view = clusterView(body, "pool", signal);
  const close = listen("stream", { pool: view.refresh, opened: view.refresh });
  signal.addEventListener("abort", close);
}

function clusterView(body, path, signal) {
  const totals = h("dl.tiles", { "aria-label": "All machines now" });
  const machines = h("div");
  const strip = heatStrip(signal);
  const waits = h("div");
  const group = new Group({ path, signal, axes: ["time"] });
  const waiting = section("Who waits for whom", waits);
  body.append(totals, section("Machines now", machines), strip.node, waiting, h("h2", {}, "Over time"), group.toolbar(), group.node);
  group.loaded = (answer) => {
    group.places = new Map(answer.machines.map((m, i) => [m.name, i]));
    fill(totals, [answer.total, answer.machines.length], () => totalTiles(answer));
    fill(machines, answer.machines, () => scrolling("Machines", machineTable(answer.machines)));
    strip.take(answer.strip ?? {});
    waiting.hidden = !answer.waits?.length;
    fill(waits, answer.waits, () => waitMatrix(answer.waits ?? []));
  };
  group.refresh();
  return { group, refresh: group.refresh };
}

function totalTiles({ total, machines }) {
  const now = total.now ?? total;
  const tile = (name, value, remark) => value !== "–" && h("div", {}, h("dt", {}, name), h("dd", {}, value, remark && h("small", {}, remark)));
  const up = machines.filter((m) => m.state === "up").length;
  return [
    tile("Machines", number(machines.length), up && up < machines.length ? `${up} up` : ""),
    tile("Cores", number(total.cores ?? machines.reduce((sum, m) => sum + (m.cores ?? 0), 0))),
    tile("CPU busy", quantity(now.cpu, "%")), tile("Memory", bytes(now.memory_bytes), now.memory_percent == null ? "" : quantity(now.memory_percent, "%")),
    tile("Received", bytes(now.received, "/s")), tile("Sent", bytes(now.sent, "/s")), tile("Disk", bytes(now.disk, "/s")), tile("GPU busy", quantity(now.gpu, "%")),
  ];
}

function machineTable(machines) {
  const figure = (name, unit) => (m) => quantity(m.now?.[name], unit);
  const columns = [
    { title: "Machine", cell: (m) => m.name },
    { title: "State", text: true, cell: (m) => m.state },
    { title: "Cores", cell: (m) => number(m.cores) },
    { title: "Workers", text: true, cell: (m) => m.workers.join(", ") || "–" },
    { title: "CPU busy", cell: (m) => [m.now?.cpu == null ? null : cpuBar(m.now), quantity(m.now?.cpu, "%")] },
    { title: "waits for disk", key: "wait", cell: figure("wait", "%") },
    { title: "stolen", key: "steal", cell: figure("steal", "%") },
    { title: "Memory", cell: figure("memory_bytes", "B") },
    { title: "of it", key: "memory_percent", cell: figure("memory_percent", "%") },
    { title: "Swap", key: "swap_bytes", cell: figure("swap_bytes", "B") },
    { title: "Received", cell: figure("received", "B/s") },
    { title: "Sent", cell: figure("sent", "B/s") },
    { title: "Disk", key: "disk", cell: figure("disk", "B/s") },
    { title: "GPU", key: "gpu", cell: figure("gpu", "%") },
    { title: "CPU pressure", key: "pressure_cpu", cell: figure("pressure_cpu", "%") },
    { title: "Throttled", key: "throttled", cell: figure("throttled", "%") },
  ];
  // A figure that no machine has is no column.
  return table("Machines now", columns.filter((c) => !c.key || machines.some((m) => (m.now?.[c.key] ?? null) !== null)), machines);
}

function cpuBar(now) {
  const bar = h("span.cpu", { "aria-hidden": "true", title: CPU_PARTS.map((part) => `${part} ${quantity(now[part], "%")}`).join(", ") });
  for (const part of CPU_PARTS) {
    const piece = h(`span.${part}`);
    piece.style.width = `${Math.max(0, Math.min(100, now[part] ?? 0))}%`;
    bar.append(piece);
  }
  return bar;
}

/** One row of colour for each machine: the form for twenty of them and more. */
function heatStrip(signal) {
  const figure = h("select", { id: "strip-of", onchange: () => draw() });
  const canvas = h("canvas.strip", { role: "img" });
  const names = h("ol.strip-names");
  const words = h("p.unit", {}, "Point at the strip for values.");
  const scale = h("span.unit");
  const box = h("div.strip-box", {}, names, canvas);
  const node = section("Heat strip", h("p.row", {}, h("label", { for: "strip-of" }, "Figure"), figure, scale), scrolling("Heat strip of machines", box), words);
  node.hidden = true;
  let strip = {};
  let shown = null;
  const take = (answer) => {
    strip = answer;
    const kinds = Object.keys(strip).filter((kind) => strip[kind].rows.some((row) => row.values.some((v) => v !== null)));
    node.hidden = kinds.length === 0 || strip[kinds[0]].rows.length < 2;
    const value = figure.value;
    fill(figure, kinds, () => kinds.map((kind) => h("option", { value: kind }, FIGURES[kind]?.[0] ?? kind)));
    if (kinds.includes(value)) figure.value = value;
    if (!node.hidden) draw();
  };
  const draw = () => {
    shown = strip[figure.value];
    if (!shown) return;
    const unit = FIGURES[figure.value]?.[1] ?? "";
    const all = shown.rows.flatMap((row) => row.values).filter((v) => v !== null);
    const top = unit === "%" ? 100 : Math.max(1e-9, all.reduce((a, b) => Math.max(a, b), 0));
    setText(scale, `pale: 0, dark: ${quantity(top, unit)}; a thin line: no reading`);
    fill(names, shown.rows.map((row) => row.machine), () => shown.rows.map((row) => h("li", {}, row.machine)));
    const ratio = devicePixelRatio || 1;
    const width = Math.max(200, canvas.parentElement.clientWidth - names.offsetWidth);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${ROW * shown.rows.length}px`;
    Object.assign(canvas, { width: width * ratio, height: ROW * shown.rows.length * ratio });
    paintStrip(canvas, shown, top, ratio);
    canvas.setAttribute("aria-label", `${FIGURES[figure.value]?.[0] ?? figure.value} of ${shown.rows.length} machines over time. Last: ${shown.rows.map((row) => `${row.machine} ${quantity(row.values.findLast((v) => v !== null), unit)}`).join(", ")}`);
  };
  canvas.addEventListener("mousemove", (event) => {
    const row = shown?.rows[Math.floor(event.offsetY / ROW)];
    const at = Math.floor((event.offsetX / canvas.clientWidth) * (shown?.x_values.length ?? 0));
    if (row) setText(words, `${row.machine} at ${clock(shown.x_values[at] ?? 0)}: ${quantity(row.values[at], FIGURES[figure.value]?.[1] ?? "")}`);
  });
  addEventListener("phalanx-theme", draw, { signal });
  addEventListener("resize", draw, { signal });
  return { node, take };
}

function paintStrip(canvas, { rows, x_values: places }, top, ratio) {
  const drawing = canvas.getContext("2d");
  const [full, none] = [colour("--heat"), colour("--line")];
  const width = canvas.width / places.length;
  rows.forEach((row, y) => row.values.forEach((value, x) => {
    const [left, right] = [Math.floor(x * width), Math.ceil((x + 1) * width)];
    const height = (ROW - 2) * ratio;
    drawing.globalAlpha = value === null ? 1 : 0.06 + 0.94 * Math.min(1, Math.max(0, value / top));
    drawing.fillStyle = value === null ? none : full;
    if (value === null) drawing.fillRect(left, (y * ROW + ROW / 2) * ratio, right - left, ratio);
    else drawing.fillRect(left, y * ROW * ratio, right - left, height);
  }));
}

function waitMatrix(waits) {
  const ranks = (key) => [...new Set(waits.map((w) => w[key]))].sort((a, b) => (a > b ? 1 : -1));
  const [waiters, awaited] = [ranks("by"), ranks("for")];
  const of = new Map(waits.map((w) => [`${w.by} ${w.for}`, w.seconds]));
  const most = Math.max(1e-9, ...of.values());
  const sums = awaited.map((k) => waits.filter((w) => w.for === k).reduce((sum, w) => sum + w.seconds, 0));
  const worst = awaited[sums.indexOf(Math.max(...sums))];
  const columns = [{ title: "waits", cell: (by) => name(by) }, ...awaited.map((k) => ({ title: `for ${name(k)}`, cell: (by) => {
    const seconds = of.get(`${by} ${k}`);
    if (seconds === undefined) return "·";
    const cell = h("span.heat", {}, duration(seconds));
    cell.style.setProperty("--much", `${Math.round((70 * seconds) / most)}%`);
    return cell;
  } }))];
  return [h("p", {}, `Most of the waiting is for ${name(worst)}: ${duration(Math.max(...sums))} of all workers together.`),
    scrolling("Who waits for whom", table("How long those of a row waited for that of a column", columns, waiters))];
}

const name = (rank) => (typeof rank === "number" ? `worker ${rank}` : String(rank));
