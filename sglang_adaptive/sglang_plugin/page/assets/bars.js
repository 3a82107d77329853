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
