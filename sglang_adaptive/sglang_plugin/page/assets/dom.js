"use strict";

// Building blocks. Text from the server becomes text nodes, never markup.

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  return furnish(document.createElement(name), attributes, children);
}

function drawing(name, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Fill a table: `head` is a list of column names or cells, `rows` a list of <tr>. */
function fillTable(table, head, rows) {
  const cells = head.map((cell) => (cell instanceof Node ? cell : element("th", { scope: "col" }, cell)));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...cells)), element("tbody", {}, ...rows));
}

function row(attributes, first, ...cells) {
  const others = cells.map((cell) => (cell instanceof Node && cell.localName === "td" ? cell : element("td", {}, cell)));
  return element("tr", attributes, element("th", { scope: "row" }, first), ...others);
}

/** Return the cell of a sentence, and the heading of a column of them: aligned left, in several lines. */
const wideCell = (text) => element("td", { class: "wrap" }, text);
const wideHead = (text) => element("th", { scope: "col", class: "text" }, text);

/** Write text only where it differs, so that a selection or a screen reader is not disturbed each second. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Numbers and times, the same everywhere.

function number(value) {
  if (value === null || !Number.isFinite(value)) return "-";
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return grouped(Math.round(value));
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

const grouped = (count) => count.toLocaleString("en");
const percent = (share) => (share === null ? "-" : `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`);
const plural = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
const stepsInWords = (steps) => (steps === 0 ? "no drafts" : plural(steps, "step"));
const clockTime = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hourCycle: "h23" });

function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

// Bars inside tables: the figures stand beside them, so the table is the chart's text as well.

/** Return a cell with a bar of `share` (0 to 1); `tick` marks another share on it. */
function barCell(share, { unused = false, tick = null } = {}) {
  const bar = element("div", { class: "bar" }, sized(element("i", { class: unused ? "unused" : null }), "width", share));
  if (tick !== null) bar.append(sized(element("b"), "left", tick));
  return element("td", { class: "barcell", "aria-hidden": "true" }, bar);
}

/** Return a cell with a marker at `share`, and dashed lines at the shares of `bounds`. */
function gaugeCell(share, bounds) {
  const bar = element("div", { class: "bar gauge" });
  for (const bound of bounds) bar.append(sized(element("i"), "left", bound));
  bar.append(sized(element("b"), "left", share));
  return element("td", { class: "barcell", "aria-hidden": "true" }, bar);
}

function sized(node, property, share) {
  node.style[property] = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  return node;
}
