// What happened while the page was open: differences between two answers, for the figures of this moment.

const WINDOW_SECONDS = 180;

class History {
  constructor() {
    this.samples = [];
    this.switches = [];
    this.unseenBefore = Infinity; // the depth is known from here on: earlier switches are not in the record
    this._last = null;
  }

  /** Take in an answer; one that was given before, or to another viewer, changes nothing. */
  add(time, rank) {
    if (!rank.active || (this._last && time <= this._last.time)) return;
    const now = { time, rank, rounds: total(rank.rounds_by_tier) };
    if (this._last && (now.rounds < this._last.rounds || rank.switches < this._last.rank.switches)) {
      Object.assign(this, new History()); // another server process
    }
    this._addSwitches(rank);
    if (this._last) this.samples.push(difference(this._last, now));
    this._last = now;
    const begin = time - WINDOW_SECONDS;
    this.samples = this.samples.filter((sample) => sample.time >= begin);
    while (this.switches.length > 1 && this.switches[1].time < begin) this.switches.shift();
  }

  get latest() {
    return this.samples.at(-1) ?? null;
  }

  /** Whether no round was verified lately; a slow round may take longer than the time between two answers. */
  get isIdle() {
    return this.samples.slice(-2).every((sample) => sample.rounds === 0);
  }

  /** Accepted and reached by position over the last minute. */
  acceptance() {
    const since = this.samples.filter((sample) => sample.time >= this._last.time - 60).map((sample) => sample.positions);
    return (this._last?.rank.accepted_by_position ?? []).map(({ position }, index) => {
      const sum = (key) => since.reduce((count, positions) => count + (positions[index]?.[key] ?? 0), 0);
      return { position, reached: sum("reached"), accepted: sum("accepted") };
    });
  }

  _addSwitches(rank) {
    const recent = rank.recent_switches;
    const fresh = this._last ? rank.switches - this._last.rank.switches : rank.switches;
    if (fresh > recent.length) {
      // More than the server remembers: the line can only be drawn from the first that it does.
      this.switches = [...recent];
      this.unseenBefore = recent[0]?.time ?? Infinity;
      return;
    }
    this.switches.push(...recent.slice(recent.length - fresh));
    if (!this._last) this.unseenBefore = -Infinity;
  }
}

function difference(before, now) {
  const byTier = {};
  for (const [tier, count] of Object.entries(now.rank.rounds_by_tier)) {
    const grown = count - (before.rank.rounds_by_tier[tier] ?? 0);
    if (grown) byTier[tier] = grown;
  }
  const grown = (key) => total(now.rank[key]) - total(before.rank[key]);
  const [tokens, accepted, drafted] = ["tokens_by_tier", "accepted_by_tier", "drafted_by_tier"].map(grown);
  return {
    ...sampleOf(now.time, now.time - before.time, byTier, tokens, tokens - accepted), // a token a request is no draft
    acceptedShare: drafted ? accepted / drafted : null,
    positions: now.rank.accepted_by_position.map(({ reached, accepted: kept }, index) => ({
      reached: reached - (before.rank.accepted_by_position[index]?.reached ?? 0),
      accepted: kept - (before.rank.accepted_by_position[index]?.accepted ?? 0),
    })),
  };
}

/** Return the figures of some seconds until `time`; `requests` counts a request once for each of its rounds. */
function sampleOf(time, seconds, byTier, tokens, requests) {
  const rounds = total(byTier);
  return {
    time,
    seconds,
    rounds,
    byTier,
    tokensPerSecond: tokens / seconds,
    acceptLength: requests ? tokens / requests : null,
    batchSize: rounds ? requests / rounds : null,
  };
}
