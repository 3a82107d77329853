// The tables beside the time charts.

/** Draw the alarms of all replicas, whichever is shown. */
function drawAlarms(ranks, now) {
  const several = ranks.length > 1;
  const rows = ranks.flatMap(({ dp_rank: replica, alarms = [] }) =>
    alarms.map(({ name, since, words }) => {
      const when = element("span", { title: clockTime(since) }, ago(now - since));
      return row({}, name, ...(several ? [`${replica}`] : []), when, wideCell(`${capital(words)}.`));
    }),
  );
  byId("alarms").hidden = !rows.length;
  fillTable(byId("alarms-table"), ["Alarm", ...(several ? ["Replica"] : []), "Since", wideHead("What was seen")], rows);
}

function drawFigures(rank, sample) {
  const last = (key, show) => (sample && sample[key] !== null ? show(sample[key]) : "-");
  const figures = [
    ["Draft steps", `${rank.current_steps}`],
    ["Tokens/s", last("tokensPerSecond", number)],
    ["Accept length", last("acceptLength", (value) => value.toFixed(2))],
    ["Requests a round", last("batchSize", number)],
    ["Drafts accepted", last("acceptedShare", percent)],
    ["Switches", grouped(rank.switches)],
  ];
  if (rank.probes) figures.push(["Spent on probes", percent(rank.probes.share)]);
  const items = figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  byId("figures").replaceChildren(...items);
  write(byId("rate-now"), last("tokensPerSecond", (value) => `${number(value)} now`));
  write(byId("length-now"), last("acceptLength", (value) => `${value.toFixed(2)} now`));
}

function drawRates(rank) {
  const best = Math.max(...rank.rates.map((rate) => rate.tokens_per_second));
  const named = (steps, words = "") => {
    const live = steps === rank.current_steps;
    const name = element("span", {}, `${steps}${words} `, live ? element("span", { class: "tag" }, "live") : null);
    return [{ class: live ? "live" : null, "aria-current": live ? "true" : null }, name];
  };
  const rows = rank.rates.map((rate) => {
    const source = rate.allowed ? (SOURCES[rate.source]?.words ?? rate.source) : "not used here";
    return row(
      ...named(rate.steps),
      barCell(rate.tokens_per_second / best, { unused: !rate.allowed }),
      number(rate.tokens_per_second),
      rate.tokens_per_round.toFixed(2),
      number(1000 * rate.seconds),
      wideCell(source),
    );
  });
  for (const [drafts, seconds] of Object.entries(rank.lookup_rounds?.seconds ?? {})) {
    const words = wideCell("what they bring depends on the text");
    rows.push(row(...named(Number(drafts), " looked up"), element("td"), "-", "-", number(1000 * seconds), words));
  }
  for (const [kind, words] of [["own_text", "Own text"], ["memory", "Other texts"]]) {
    if (!rank.lookup_rounds?.[kind]) continue;
    const { rounds, tokens } = rank.lookup_rounds[kind];
    const each = rounds ? (1 + tokens / rounds).toFixed(2) : "-";
    const brought = wideCell(`${tokens} tokens so far in ${plural(rounds, "round")} of a request`);
    rows.push(row({}, words, element("td"), "-", each, "-", brought));
  }
  const note = `Expected of a round with ${plural(rank.batch_size, "request")}, the size of the latest.`;
  write(byId("rates-note"), note);
  const bar = element("td");
  fillTable(byId("rates-table"), ["Steps", bar, "Tokens/s", "Tokens a round", "ms a round", wideHead("Round time is")], rows);
}

function drawSlots(rank) {
  const rows = rank.slots.map((slot) => {
    const deepest = slot.candidate_steps.at(-1) || 1;
    const bounds = [slot.drop_at, slot.rise_above].filter((bound) => bound !== null).map((bound) => bound / deepest);
    const outlook = slot.batches ? slotOutlook(slot) : "Nothing seen yet.";
    return row(
      {},
      batchRange(slot.batch_range),
      `${slot.steps}`,
      gaugeCell(slot.ema_accept_len / deepest, bounds),
      slot.ema_accept_len.toFixed(2),
      wideCell(outlook),
    );
  });
  const text = wideHead("What it waits for");
  fillTable(byId("slots-table"), ["Batch", "Steps", element("td"), "Average accepted", text], rows);
}

function drawAcceptance(rank, history) {
  const minute = history.acceptance();
  const learnt = rank.acceptance ?? [];
  const positions = Math.max(learnt.length, minute.length);
  const rows = Array.from({ length: positions }, (_, index) => {
    const believed = learnt[index] ?? null;
    const seen = minute[index]?.reached ? minute[index].accepted / minute[index].reached : null;
    const ever = rank.accepted_by_position[index];
    const start = ever?.reached ? ever.accepted / ever.reached : null;
    const shown = learnt.length ? believed?.probability : seen;
    // Rounds of a depth that the configuration in force leaves out reached positions of which the policy believes nothing.
    const belief = believed ? `${percent(believed.probability)} \u00b1 ${percent(believed.deviation)}` : "-";
    const cells = learnt.length ? [belief] : [];
    return row({}, `${index + 1}`, barCell(shown ?? 0, { tick: start }), ...cells, percent(seen), percent(start));
  });
  const subject = learnt.length ? "The bar is what the policy believes" : "The bar is what was seen in the last minute";
  write(byId("acceptance-note"), `Of the drafts that were reached, accepted. ${subject}; the mark is the share since the start.`);
  const believed = learnt.length ? ["Believed"] : [];
  fillTable(byId("acceptance-table"), ["Position", element("td"), ...believed, "Last minute", "Since start"], rows);
}

/** Draw tokens a round by the requests' lengths, for the bins in which something was drafted. */
function drawLengths(rank) {
  const bins = rank.accepted_by_length.filter((bin) => bin.requests);
  const lengths = bins.map((bin) => 1 + bin.accepted / bin.requests);
  const longest = Math.max(...lengths);
  write(byId("lengths-note"), "Of every eighth round that drafted, by the tokens of the request, since the start.");
  const rows = bins.map((bin, index) => {
    const name = bin.to === undefined ? `from ${grouped(bin.from)}` : `${grouped(bin.from)} to ${grouped(bin.to - 1)}`;
    return row({}, name, barCell(lengths[index] / longest), lengths[index].toFixed(2), percent(bin.accepted / bin.drafted), grouped(bin.requests));
  });
  fillTable(byId("lengths-table"), ["Tokens", element("td"), "Accept length", "Drafts accepted", "Requests of rounds"], rows);
}

function drawAudit({ audit: found }) {
  const { proved } = found;
  const gap = proved && (proved.gap_nats === null ? "where one text ends" : `${proved.gap_nats.toPrecision(3)} nats less likely than that of zero steps`);
  const wrong = proved ? `Token ${proved.token} of request ${proved.request} is wrong: ${gap}. The server stays at zero steps.` : "No wrong token.";
  const share = `${+(100 * found.share).toPrecision(3)}% of finished greedy requests are decoded again at zero steps while the server is idle.`;
  write(byId("audit-note"), found.reason === null ? `${wrong} ${share}` : `Off: ${found.reason}.`);
  const rows = [["Equal", found.equal], ["Ties", found.tie], ["Wrong", found.wrong], ["Not compared", found.unfinished]];
  fillTable(byId("audit-table"), ["Verdict", "Requests"], rows.map(([verdict, count]) => row({}, verdict, grouped(count))));
}

function drawSwitches(rank, now) {
  const recent = [...rank.recent_switches].reverse();
  const count = recent.length;
  const changed = rank.config_changed;
  const config = changed ? ` The configuration was changed at ${clockTime(changed.time)} by ${changed.by}.` : "";
  const listed = count ? `The latest ${count} of ${grouped(rank.switches)}, newest first.` : "None yet.";
  write(byId("switches-note"), listed + config);
  const rows = recent.map((change) => {
    const when = element("span", { title: clockTime(change.time) }, ago(now - change.time));
    const depths = `${change.from_steps} \u2192 ${change.to_steps}`;
    return row({}, when, depths, `${change.batch_size}`, wideCell(switchReason(change, rank.policy)));
  });
  const text = wideHead("Why");
  fillTable(byId("switches-table"), ["When", "Steps", "Batch", text], rows);
}

function drawHistoryTable(kept) {
  if (!byId("history").open || !kept) return;
  const rows = [...kept.samples].reverse().map((sample) => {
    const depths = Object.entries(sample.byTier).map(([tier, count]) => `${tier}: ${percent(count / sample.rounds)}`);
    return row(
      {},
      clockTime(sample.time),
      depths.join(", ") || "no round",
      number(sample.tokensPerSecond),
      sample.acceptLength === null ? "-" : sample.acceptLength.toFixed(2),
    );
  });
  fillTable(byId("history-table"), ["Until", "Rounds by steps", "Tokens/s", "Accept length"], rows);
}
