// What the server's codes mean, in sentences.

/** Return why the depth changed, from one of `recent_switches`. */
function switchReason(change, policy) {
  const to = stepsInWords(change.to_steps);
  const favors = policy === "ema" ? "Recent acceptance favors" : "Recent acceptance and round times favor";
  const reasons = {
    acceptance: `${favors} ${to}.`,
    "batch size": `The batch became ${plural(change.batch_size, "request")}, for which ${to} suits better.`,
    probe: "A probe: a few rounds to measure another depth, or the way back.",
    lookup: "The text copies itself, so drafts are looked up in the request; or it no longer does.",
    capacity: "A request is near the end of its context, or the KV cache is nearly full; or that is over.",
    forced: `An operator holds the depth at ${to}.`,
    released: "An operator released the depth, and the policy took over.",
    degraded: "The policy failed, and the depth given at launch took over; or the audit found a wrong token.",
    configuration: "The configuration was changed.",
    audit: "Finished requests were decoded again at zero steps, or that is over.",
  };
  return reasons[change.cause] ?? `${change.cause}.`;
}

/** Return where a round time comes from. */
const SOURCES = {
  measured: { mark: "", sample: "12.3", words: "measured" },
  profile: { mark: "p ", sample: "p 12.3", words: "saved profile" },
  interpolated: { mark: "~", sample: "~12.3", words: "interpolated" },
  prior: { mark: "? ", sample: "? 12.3", words: "guessed" },
};

function slotOutlook(slot) {
  if (slot.steps === 0) return "Without drafts nothing is learned: the next decision tries the next depth.";
  const at = slot.candidate_steps.indexOf(slot.steps);
  const ways = [];
  if (slot.drop_at !== null) ways.push(`down to ${slot.candidate_steps[at - 1]} at ${slot.drop_at.toFixed(2)} or below`);
  if (slot.rise_above !== null) ways.push(`up to ${slot.candidate_steps[at + 1]} above ${slot.rise_above.toFixed(2)}`);
  return ways.length ? `Goes ${ways.join(", ")}.` : "The only depth of this slot.";
}

function batchRange(range) {
  if (range === null) return "none";
  const [low, high] = range;
  if (high === null) return `from ${low}`;
  return low === high ? `${low}` : `${low} to ${high}`;
}

/** Return { kind, mark, headline, sentence } for a rank's state. */
function stateOf(rank, history) {
  if (!rank.active) {
    const why = rank.reason ?? "the server's log says why";
    return { kind: "inactive", mark: "\u2013", headline: "Not adaptive", sentence: `The server runs without adaptive speculation: ${why}.` };
  }
  if (rank.degraded) {
    const held = `The depth stays at ${stepsInWords(rank.degraded_steps)} until the server is configured again; see its log.`;
    return { kind: "degraded", mark: "\u25b2", headline: "Degraded", sentence: `The policy was set aside: ${rank.degraded_reason}. ${held}` };
  }
  const idle = history.isIdle;
  if (rank.forced_steps !== null) {
    const now = idle ? "No round is running." : "Rounds are running.";
    const release = "null in adaptive_force_steps releases it";
    return { kind: "held", mark: "\u25a0", headline: `Held at ${stepsInWords(rank.forced_steps)}`, sentence: `An operator holds the depth; ${release}. ${now}` };
  }
  if (history.latest === null) {
    return { kind: "connecting", mark: "\u25cb", headline: "Connected", sentence: "Two answers are needed to tell what runs." };
  }
  if (idle) {
    const next = `The depth waits at ${stepsInWords(rank.current_steps)}.`;
    return { kind: "idle", mark: "\u25cb", headline: "Idle", sentence: `No request is being decoded. ${next}` };
  }
  const why = rank.why ? capital(`${rank.why.words}.`) : "The EMA policy decides before every round, from recent acceptance.";
  return { kind: "serving", mark: "\u25cf", headline: capital(`${stepsInWords(rank.current_steps)} a round`), sentence: why };
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
