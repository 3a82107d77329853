// Three charts over one time axis, drawn at the width that there is, so that text keeps its size on a phone.

const LEFT = 40, RIGHT = 8, AXIS = 18;
const LINE_SECONDS = 180; // the line along the switches is drawn in charts of at most so much
const SHADES = 5; // shares of rounds are drawn in so many steps of opacity

class TimeAxis {
  constructor(end, seconds, width) {
    Object.assign(this, { end, seconds, begin: end - seconds, width });
    this.scale = (width - LEFT - RIGHT) / seconds;
  }

  x(time) {
    return LEFT + (Math.max(this.begin, time) - this.begin) * this.scale;
  }

  /** Grid lines and labels every 10 s to 15 min before now. */
  draw(height) {
    const every = [10, 30, 60, 120, 300, 600].find((step) => (this.seconds / step) * 64 <= this.width) ?? 900;
    const marks = [];
    for (let back = 0; back <= this.seconds; back += every) {
      const x = this.x(this.end - back);
      marks.push(drawing("path", { class: "grid", d: `M${x} 0V${height}` }));
      const anchor = back === 0 ? "end" : "middle";
      const label = back === 0 ? "now" : every % 60 ? `-${back} s` : `-${back / 60} min`;
      if (x > LEFT) marks.push(drawing("text", { x, y: height + 13, "text-anchor": anchor }, label));
    }
    return drawing("g", {}, ...marks);
  }
}

/** Return the axis that shows what is known of the chosen range, at least 30 s. */
function timeAxis(kept, end, width) {
  const first = kept?.samples[0];
  return new TimeAxis(end, Math.min(kept?.span ?? range, Math.max(30, first ? end - first.time + first.seconds : 0)), width);
}

function chart(host, kind, label, height, ...layers) {
  const width = host.clientWidth;
  host.replaceChildren(
    drawing("svg", { class: kind, role: "img", "aria-label": label, width, height: height + AXIS }, ...layers),
  );
}

/** The depth: a cell a second and depth, as dark as the share of rounds there, and a line along the switches. */
function drawDepth(host, history, rank, axis) {
  const tiers = rank.tiers;
  const step = Math.max(16, Math.min(26, 150 / tiers.length));
  const height = step * tiers.length;
  const top = (tier) => height - step * (tiers.indexOf(Number(tier)) + 1);
  const rows = tiers.map((tier) => {
    const y = top(tier) + step / 2;
    return drawing("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, `${tier}`);
  });
  const line = depthLine(history, rank, axis, (tier) => (top(tier) + step / 2).toFixed(1));
  const label = `Draft steps over the last ${Math.round(axis.seconds)} seconds, now ${rank.current_steps}`;
  chart(host, "depth", label, height, axis.draw(height), ...rows, ...depthShares(history, axis, top, step), ...(line ? [line] : []));
}

function depthShares(history, axis, top, step) {
  const paths = Array.from({ length: SHADES }, () => []);
  for (const sample of history.samples) {
    if (!sample.rounds || sample.time < axis.begin) continue;
    const left = axis.x(sample.time - sample.seconds);
    const width = Math.max(0.5, axis.x(sample.time) - left);
    for (const [tier, count] of Object.entries(sample.byTier)) {
      const shade = Math.min(SHADES - 1, Math.floor((SHADES * count) / sample.rounds));
      paths[shade].push(`M${left.toFixed(1)} ${top(tier) + 2}h${width.toFixed(1)}v${step - 4}h${-width.toFixed(1)}z`);
    }
  }
  return paths.map((cells, shade) =>
    drawing("path", { class: "share", d: cells.join(""), "fill-opacity": (0.12 + (0.6 * (shade + 1)) / SHADES).toFixed(2) }),
  );
}

function depthLine(history, rank, axis, y) {
  const { switches, unseenBefore } = history;
  let path = "";
  if (axis.seconds > LINE_SECONDS) return null; // the server remembers the latest switches alone
  if (!switches.length) {
    path = `M${axis.x(axis.begin)} ${y(rank.current_steps)}H${axis.x(axis.end)}`;
  } else {
    const known = Math.max(axis.begin, unseenBefore);
    path = `M${axis.x(known).toFixed(1)} ${y(switches[0].from_steps)}`;
    for (const { time, to_steps: to } of switches) path += `H${axis.x(time).toFixed(1)}V${y(to)}`;
    path += `H${axis.x(axis.end)}`;
  }
  return drawing("path", { class: "trace", d: path });
}

/** A line of one figure of the samples, broken where there is none. */
function drawLine(host, kind, what, samples, key, axis, { from, height = 84 }) {
  const shown = samples.filter((sample) => sample.time >= axis.begin);
  const values = shown.map((sample) => sample[key]).filter((value) => value !== null);
  const ceiling = niceCeiling(Math.max(from, ...values) - from) + from;
  const y = (value) => (height - 4 - ((value - from) / (ceiling - from)) * (height - 12)).toFixed(1);
  const ticks = [from, (from + ceiling) / 2, ceiling].flatMap((value) => [
    drawing("path", { class: "grid", d: `M${LEFT} ${y(value)}H${axis.width - RIGHT}` }),
    drawing("text", { x: LEFT - 8, y: Number(y(value)) + 4, "text-anchor": "end" }, tick(value)),
  ]);
  const { line, dots } = trace(shown, key, axis, y);
  const label = `${what} over the last ${Math.round(axis.seconds)} seconds, now ${number(shown.at(-1)?.[key] ?? null)}`;
  const layers = [drawing("path", { class: "trace", d: line }), drawing("path", { class: "dots", d: dots })];
  chart(host, kind, label, height, axis.draw(height), ...ticks, ...layers);
}

/** Return paths for the stretches of samples that follow each other, and for those that stand alone. */
function trace(samples, key, axis, y) {
  const stretches = [[]];
  for (const sample of samples) {
    if (sample[key] === null) {
      if (stretches.at(-1).length) stretches.push([]);
      continue;
    }
    stretches.at(-1).push([axis.x(sample.time - sample.seconds / 2).toFixed(1), y(sample[key])]);
  }
  const line = stretches.filter((points) => points.length > 1).map((points) => `M${points.map((p) => p.join(" ")).join("L")}`);
  const alone = stretches.filter((points) => points.length === 1).map(([[x, at]]) => `M${x - 2} ${at}a2 2 0 1 0 4 0a2 2 0 1 0-4 0`);
  return { line: line.join(""), dots: alone.join("") };
}

/** Return the least of 1, 2, 4, 6, 8, 10, 20, ... that is not below `value`. */
function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}

const tick = (value) => (value >= 10000 ? `${Math.round(value / 1000)}k` : `${Number(value.toFixed(2))}`);
