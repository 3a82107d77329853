// The cost profile as a table that is also a heat map: darker is longer, pattern and sign tell where a figure is from.

function drawCostMap(rank) {
  const { batch_sizes: sizes, steps, seconds, source } = rank.cost_table;
  const logs = seconds.flat().map(Math.log);
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const heat = (value) => ((Math.log(value) - low) / (high - low || 1)).toFixed(2);
  const measured = new Map(rank.cost_cells.map((cell) => [`${cell.batch_size} ${cell.steps}`, cell.rounds]));
  const here = nearest(sizes, rank.batch_size);
  const head = [element("th", { scope: "col" }, "Batch"), ...steps.map((depth) => depthHeading(depth, rank))];
  const rows = sizes.map((size, i) => {
    const cells = seconds[i].map((value, j) => {
      const live = i === here && steps[j] === rank.current_steps;
      const node = costCell(value, source[i][j], measured.get(`${size} ${steps[j]}`), live);
      node.style.setProperty("--heat", heat(value));
      return node;
    });
    const label = element("span", { class: i === here ? "current" : null }, `${size}`);
    return row({}, label, ...cells);
  });
  fillTable(byId("costs-table"), head, rows);
}

function depthHeading(depth, rank) {
  const live = depth === rank.current_steps;
  return element("th", { scope: "col", class: live ? "current" : null }, stepsInWords(depth));
}

function costCell(seconds, source, rounds, live) {
  const { mark, words } = SOURCES[source] ?? { mark: "", words: source };
  const from = rounds ? `${words}, ${plural(rounds, "round")}` : words;
  const text = `${mark}${number(1000 * seconds)}`;
  const told = element("span", { class: "unseen" }, ` ${from}${live ? ", live now" : ""}`);
  return element("td", { class: `${source}${live ? " here" : ""}`, title: capital(from) }, text, told);
}

/** Return the index of the size that stands for `batch`: the one with the nearest ratio. */
function nearest(sizes, batch) {
  const distances = sizes.map((size) => Math.abs(Math.log(size / Math.max(1, batch))));
  return distances.indexOf(Math.min(...distances));
}

function drawCostLegend(rank) {
  const used = new Set(rank.cost_table.source.flat());
  const items = Object.entries(SOURCES)
    .filter(([source]) => used.has(source))
    .map(([source, { sample, words }]) => element("li", {}, element("i", { class: source, "aria-hidden": "true" }, sample), words));
  const text = [...used].sort().join();
  if (byId("costs-legend").dataset.used !== text) {
    byId("costs-legend").dataset.used = text;
    byId("costs-legend").replaceChildren(...items);
  }
}
