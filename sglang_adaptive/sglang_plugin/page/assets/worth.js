// What adaptive speculation is worth, over all and by batch size.

// Two standard deviations at most; a second decimal only where it means something.
const decimals = ({ deviation }) => (2 * deviation < 0.095 ? 2 : 1);
const times = (one) => one.times.toFixed(decimals(one));
const plusMinus = (one) => `\u00b1 ${(2 * one.deviation).toFixed(decimals(one))}`;

function spanInWords(seconds) {
  if (seconds < 90) return plural(Math.round(seconds), "second");
  return seconds >= 3540 ? "hour" : plural(Math.round(seconds / 60), "minute");
}

/** Return [name, speedup] of what an operator compares with: no speculation, and the depth given at launch. */
function rivals(against, launchSteps) {
  const named = [[0, "no speculation"]];
  if (launchSteps) named.push([launchSteps, `a fixed ${plural(launchSteps, "step")}`]);
  const found = named.map(([steps, name]) => [name, against.find((one) => one.steps === steps)]);
  return found.filter(([, one]) => one);
}

function drawWorth(rank) {
  const found = rank.speedup ? rivals(rank.speedup.against, rank.launch_steps) : [];
  byId("worth").hidden = !rank.active;
  if (!found.length) return drawNoWorth(rank);
  write(byId("worth-headline"), found.map(([name, one]) => `${times(one)} times ${name}`).join(", "));
  const sure = found.map(([name, one]) => `${plusMinus(one)} against ${name}`).join(", ");
  const note = "is how many times as long the same tokens would have taken";
  const sentence = `Over the last ${spanInWords(rank.speedup.seconds)}: this ${note}, ${sure} (two standard deviations).`;
  write(byId("worth-sentence"), sentence);
}

function drawNoWorth(rank) {
  const why = rank.policy === "throughput" ? "No round of the last hour was the policy's own choice." : "Only a policy with a cost model can say it.";
  write(byId("worth-headline"), "What it is worth is not known");
  write(byId("worth-sentence"), why);
}

function drawByBatch(rank, kept) {
  byId("batches").hidden = !kept?.by_batch.length;
  if (byId("batches").hidden) return;
  const compared = rivals(kept.by_batch.flatMap((batch) => batch.against), rank.launch_steps).map(([name, { steps }]) => ({ name, steps }));
  const rows = kept.by_batch.map((batch) => {
    const rounds = total(batch.rounds);
    const cells = compared.map(({ steps }) => {
      const one = batch.against.find((entry) => entry.steps === steps);
      return one ? `${times(one)} ${plusMinus(one)}` : "-";
    });
    const rate = batch.seconds ? number(batch.tokens / batch.seconds) : "-";
    const length = batch.requests ? (batch.tokens / batch.requests).toFixed(2) : "-";
    return row({}, batch.region, grouped(rounds), rate, length, ...cells, depthCell(kept.steps, batch.rounds, rounds));
  });
  write(byId("batches-note"), `Requests a round, over the last ${RANGES[kept.span]}. Tokens/s are those of its rounds.`);
  const heads = compared.map(({ name }) => `Times ${name}`);
  const depths = wideHead("Share of rounds by steps");
  fillTable(byId("batches-table"), ["Requests", "Rounds", "Tokens/s", "Accept length", ...heads, depths], rows);
}

/** Return a cell with a share for each depth that ran, the largest first. */
function depthCell(steps, rounds, all) {
  const shares = steps.map((depth, index) => [depth, rounds[index] / all]).filter(([, share]) => share >= 0.005);
  shares.sort(([, one], [, other]) => other - one);
  return element("td", { class: "wrap depths" }, shares.map(([depth, share]) => `${depth}: ${percent(share)}`).join(", "));
}
