// Builds elements. What comes from a run reaches the page as text nodes only, never as markup.

/** An element: `h("a.button", {href, onclick}, "text", node)`. */
export function h(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child != null && child !== false && child !== ""));
  return node;
}

/** Fills `node` again where `value` is not what it was filled from; what has the focus, and scrolling, stay. */
export function fill(node, value, build) {
  const key = JSON.stringify(value);
  if (node.filledFrom === key) return;
  node.filledFrom = key;
  const find = (what) => [...node.querySelectorAll(what)];
  const places = find(".scroll").map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = find("a, button, input, [tabindex]").indexOf(document.activeElement);
  node.replaceChildren(...[build()].flat(3).filter(Boolean));
  find(".scroll").forEach((box, i) => box.scrollTo(...(places[i] ?? [0, 0])));
  find("a, button, input, [tabindex]")[focused]?.focus({ preventScroll: true });
}

export function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

/** Says `text` to screen readers. */
export const say = (text) => setText(document.getElementById("said"), text);

export const button = (label, act, properties = {}) => h("button.small", { type: "button", onclick: act, ...properties }, label);
export const small = (text) => (text ? h("small", {}, text) : null);
export const tile = (name, value, remark = "") => value !== "–" && h("div", {}, h("dt", {}, name), h("dd", {}, value, small(remark)));

/** A card with a heading, which is a landmark of its own. */
export function section(title, ...children) {
  const heading = h("h2", { id: `h-${title.toLowerCase().replace(/\W+/g, "-")}` }, title);
  return h("section.card", { "aria-labelledby": heading.id }, heading, children);
}

/** A table of `columns` ({title, cell, text, remark, mark}), one row for each of `rows`; the first cell names the row.
 * It lies in a box that scrolls sideways and can be reached by keyboard. */
export function table(caption, columns, rows) {
  const cell = (column, row, first) => h(first ? "th" : column.text ? "td.text" : "td",
    { scope: first ? "row" : null, "data-name": column.title }, column.cell(row) ?? "–");
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((c) => h(c.text ? "th.text" : "th", { scope: "col" }, c.mark && swatch(c.mark), c.title, small(c.remark))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((c, i) => cell(c, row, i === 0)))))));
}

const colours = new Map();
addEventListener("phalanx-theme", () => colours.clear());

/** A colour of the style sheet, as canvases need it: `colour("--ink")`. */
export function colour(name) {
  if (!colours.has(name)) {
    const probe = document.getElementById("probe");
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

export const PARTS = ["input", "compute", "communicate", "send", "wait", "reduce", "update", "settle", "other", "hidden"];
export const SERIES = 8;
export const seriesColour = (i) => colour(`--s${i % SERIES}`);
export const partColour = (kind) => colour(`--part-${PARTS.includes(kind) ? kind : "other"}`);

/** The mark of a colour in a legend. */
export function swatch(of, kind = "") {
  const node = h(`span.swatch${kind}`);
  node.style.setProperty("--of", of);
  return node;
}

/** Makes a canvas as sharp as the screen; returns what draws on it, in CSS pixels. */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  return ctx;
}
