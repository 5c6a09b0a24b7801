// Builds elements. What comes from a run reaches the page as text nodes only, never as markup.

/** An element: `h("a.button", {href, onclick}, "text", node)`. */
export function h(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Fills `node` again where `value` is not what it was filled from: focus and scrolling are kept otherwise. */
export function fill(node, value, build) {
  const key = JSON.stringify(value);
  if (node.filledFrom === key) return;
  node.filledFrom = key;
  node.replaceChildren(...[build(value)].flat(3).filter(Boolean));
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Says `text` to screen readers. */
export function say(text) {
  setText(document.getElementById("said"), text);
}

/** A card with a heading, which is a landmark of its own. */
export function section(title, ...children) {
  const heading = h("h2", { id: `h-${title.toLowerCase().replace(/\W+/g, "-")}` }, title);
  return h("section.card", { "aria-labelledby": heading.id }, heading, ...children);
}

/** A table of `columns` ({title, cell, text}) with one row for each of `rows`; the first cell names the row. */
export function table(caption, columns, rows) {
  const cell = (column, row, first) => {
    const found = column.cell(row);
    const name = first ? "th" : column.text ? "td.text" : "td";
    return h(name, { scope: first ? "row" : null, "data-name": column.title }, found ?? "–");
  };
  return h("table", {}, h("caption.hidden", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((c) => h(c.text ? "th.text" : "th", { scope: "col" }, c.title, c.remark && h("small", {}, c.remark))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((c, i) => cell(c, row, i === 0))))));
}

/** A box that scrolls sideways and can be reached by keyboard. */
export function scrolling(label, ...children) {
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": label }, ...children);
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
