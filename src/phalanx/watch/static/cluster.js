// Machines and their totals, now and over time, as a heat strip, and who waits for whom.
import { listen, runPath } from "./api.js";
import { colour, fill, h, section, setText, sized, table, tile } from "./dom.js";
import { clock, duration, number, quantity } from "./format.js";
import { Group } from "./group.js";

const CPU_PARTS = ["user", "system", "wait", "steal"];
const ROW = 18;

export function buildCluster({ id, body, signal }) {
  const group = clusterView(body, runPath(id, "/cluster"), signal);
  return { changed: group.refresh, state: (view) => group.takeMarks(view.marks) };
}

/** The machines of `phalanx watch --pool`, which may be idle. */
export function openPool(main, signal) {
  document.title = "Pool · Phalanx";
  const body = h("div");
  main.replaceChildren(h("header.run", {}, h("h1", { tabindex: -1 }, "Pool"), h("p.facts", {}, "The machines of the pool, whether or not a run uses them.")), body);
  const group = clusterView(body, "pool", signal);
  group.refresh();
  listen("stream", signal, { pool: group.refresh });
}

function clusterView(body, path, signal) {
  const totals = h("dl.tiles", { "aria-label": "All machines now" });
  const [machines, waits] = [h("div"), h("div")];
  const strip = heatStrip(signal);
  const waiting = section("Who waits for whom", waits);
  const group = new Group({ path, signal, axes: ["time"], pick: (answer) => {
    group.places = new Map(answer.machines.map((machine, i) => [machine.name, i]));
    return answer.charts;
  } });
  body.append(totals, section("Machines now", machines), strip.node, waiting, h("h2", {}, "Over time"), group.toolbar(), group.node);
  group.loaded = (answer) => {
    fill(totals, [answer.total, answer.machines], () => totalTiles(answer));
    fill(machines, answer.machines, () => machineTable(answer.machines));
    strip.take(answer);
    waiting.hidden = !answer.waits.length;
    fill(waits, answer.waits, () => (answer.waits.length ? waitMatrix(answer.waits) : []));
  };
  return group;
}

function totalTiles({ total, machines }) {
  const up = machines.filter((m) => m.state === "up").length;
  return [
    tile("Machines", number(machines.length), up && up < machines.length ? `${up} up` : ""),
    tile("Cores", number(machines.reduce((sum, m) => sum + (m.cores ?? 0), 0) || null)), tile("CPU busy", quantity(total.cpu, "%")),
    tile("Memory", quantity(total.memory_bytes, "B")), tile("Received", quantity(total.received, "B/s")), tile("Sent", quantity(total.sent, "B/s")),
    tile("Disk", quantity(total.disk, "B/s")), tile("GPU busy", quantity(total.gpu, "%")),
  ];
}

function machineTable(machines) {
  const figure = (title, name, unit) => ({ title, name, cell: (m) => quantity(m.now?.[name], unit) });
  const columns = [
    { title: "Machine", cell: (m) => m.name }, { title: "State", text: true, cell: (m) => m.state }, { title: "Cores", cell: (m) => number(m.cores) },
    { title: "Workers", text: true, cell: (m) => m.workers.join(", ") || "–" },
    { title: "CPU busy", cell: (m) => [m.now?.cpu == null ? null : cpuBar(m.now), quantity(m.now?.cpu, "%")] },
    figure("waits for disk", "wait", "%"), figure("stolen", "steal", "%"), figure("Memory", "memory_bytes", "B"), figure("of it", "memory_percent", "%"),
    figure("Swap", "swap_bytes", "B"), figure("Received", "received", "B/s"), figure("Sent", "sent", "B/s"), figure("Disk", "disk", "B/s"),
    figure("GPU", "gpu", "%"), figure("CPU pressure", "pressure_cpu", "%"), figure("Throttled", "throttled", "%"),
  ];
  // A figure that no machine has is no column.
  return table("Machines, one by one", columns.filter(({ name }) => !name || machines.some((m) => m.now?.[name] != null)), machines);
}

function cpuBar(now) {
  return h("span.cpu", { "aria-hidden": "true", title: CPU_PARTS.map((part) => `${part} ${quantity(now[part], "%")}`).join(", ") }, CPU_PARTS.map((part) => {
    const piece = h(`span.${part}`);
    piece.style.width = `${Math.max(0, Math.min(100, now[part] ?? 0))}%`;
    return piece;
  }));
}

/** One row of colour for each machine: the form for twenty of them and more. */
function heatStrip(signal) {
  const chosen = h("select", { id: "strip-of", onchange: () => draw() });
  const names = h("ol.row-names.low");
  const canvas = h("canvas", { role: "img", onmousemove: (event) => point(event) });
  const scale = h("span.unit");
  const words = h("p.unit", {}, "Point at the strip for values; charts below have the same as tables.");
  const node = section("Heat strip", h("p.row", {}, h("label", { for: "strip-of" }, "Figure"), chosen, scale), h("div.named", {}, names, h("div.stage", {}, canvas)), words);
  let [strip, title, unit, figures] = [null, "", "", []];
  const take = (answer) => {
    figures = answer.charts.filter(({ name }) => answer.strip[name]?.rows.length > 1).map((chart) => ({ ...chart, strip: answer.strip[chart.name] }));
    fill(chosen, figures.map((each) => each.name), () => figures.map((each) => h("option", { value: each.name }, each.title)));
    node.hidden = !figures.length;
    draw();
  };
  const draw = () => {
    if (!figures.length) return;
    ({ strip, title, unit } = figures.find((each) => each.name === chosen.value) ?? figures[0]);
    const top = unit === "%" ? 100 : strip.rows.flatMap((row) => row.values).reduce((a, b) => Math.max(a, b ?? 0), 1e-9);
    setText(scale, `pale: 0, strong: ${quantity(top, unit)}; a thin line: no reading`);
    fill(names, strip.rows.map((row) => row.machine), () => strip.rows.map((row) => h("li", {}, row.machine)));
    const width = Math.max(120, canvas.parentElement.clientWidth);
    const ctx = sized(canvas, width, ROW * strip.rows.length);
    const x = (i) => Math.round((i * width) / strip.x_values.length);
    strip.rows.forEach(({ values }, y) => values.forEach((value, i) => {
      ctx.globalAlpha = value === null ? 1 : 0.06 + 0.94 * Math.min(1, Math.max(0, value / top));
      ctx.fillStyle = colour(value === null ? "--line" : "--heat");
      if (value === null) ctx.fillRect(x(i), (y + 0.5) * ROW, x(i + 1) - x(i), 1);
      else ctx.fillRect(x(i), y * ROW, Math.max(1, x(i + 1) - x(i)), ROW - 2);
    }));
    const last = ({ machine, values }) => `${machine} ${quantity(values.findLast((v) => v !== null), unit)}`;
    canvas.setAttribute("aria-label", `${title} of ${strip.rows.length} machines over time. Last: ${strip.rows.map(last).join(", ")}`);
  };
  const point = (event) => {
    const row = strip.rows[Math.floor(event.offsetY / ROW)];
    const at = Math.min(strip.x_values.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * strip.x_values.length));
    if (row) setText(words, `${row.machine} at ${clock(strip.x_values[at])}: ${title} ${quantity(row.values[at], unit)}`);
  };
  for (const event of ["phalanx-theme", "resize"]) addEventListener(event, draw, { signal });
  return { node, take };
}

function waitMatrix(waits) {
  const of = new Map(waits.map((wait) => [JSON.stringify([wait.by, wait.for]), wait.seconds]));
  const most = Math.max(...of.values());
  const awaited = [...new Set(waits.map((wait) => wait.for))].map((name) => ({ name, sum: waits.filter((w) => w.for === name).reduce((sum, w) => sum + w.seconds, 0) }));
  awaited.sort((a, b) => b.sum - a.sum);
  const columns = awaited.map(({ name }) => ({ title: `for ${name}`, cell: (by) => {
    const seconds = of.get(JSON.stringify([by, name]));
    if (seconds === undefined) return "·";
    const cell = h("span.heat", {}, duration(seconds));
    cell.style.setProperty("--much", `${Math.round((40 * seconds) / most)}%`);
    return cell;
  } }));
  return [h("p", {}, `Most of the waiting is for ${awaited[0].name}: ${duration(awaited[0].sum)} of all workers together.`),
    table("How long those of a row waited for that of a column", [{ title: "waits", cell: (by) => by }, ...columns], [...new Set(waits.map((wait) => wait.by))])];
}
