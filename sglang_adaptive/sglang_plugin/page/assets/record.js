// What the server remembers: the last minute, quarter of an hour or hour, in buckets.

const RANGES = { 60: "1 min", 900: "15 min", 3600: "1 h" };
const RANGE_KEY = "sglang-adaptive-range";
const RECORD_TIMEOUT_MS = 10000;

let range = RANGES[sessionStorage.getItem(RANGE_KEY)] ? Number(sessionStorage.getItem(RANGE_KEY)) : 900;
let record = null; // the latest answer, of whatever range
let recordAsked = 0; // when, in milliseconds

/** Ask for the chosen range where a bucket of it may have ended since the last time. */
async function refreshRecord(headers, now = performance.now()) {
  const current = record && record.span === range;
  if (current && now - recordAsked < 1000 * record.period) return;
  recordAsked = now;
  const asked = range;
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(RECORD_TIMEOUT_MS) };
  const response = await fetch(`adaptive/history.json?span=${asked}`, options);
  if (!response.ok) return;
  const body = await response.json();
  const [first] = body.ranks.map((rank) => rank.history).filter((history) => history !== null);
  if (first && asked === range) record = { time: body.time, span: first.span, period: first.period, ranks: body.ranks };
}

/** Return the history of a rank, or null; after a switch of the range the former one until the answer is there. */
function rankRecord(dpRank) {
  if (!record) return null;
  const history = record.ranks.find((rank) => rank.dp_rank === dpRank)?.history;
  return history ? { ...history, time: record.time, samples: samplesOf(history, record.time) } : null;
}

/** Return one sample a bucket, oldest first; where no round ran, one of zero at either end of the silence. */
function samplesOf(history, time) {
  const samples = [];
  let last = null;
  for (const bucket of history.buckets) {
    const until = time - bucket.ago;
    const begin = until - bucket.seconds;
    if (last !== null && begin - last > 0.5) samples.push(...silence(last, begin, history.period));
    samples.push(bucketSample(bucket, history.steps, until));
    last = until;
  }
  if (last !== null && time - last > 1.5 * history.period) samples.push(...silence(last, time, history.period));
  return samples;
}

function silence(begin, end, period) {
  const ends = end - begin > period + 0.5 ? [begin + period, end] : [end];
  return ends.map((time) => sampleOf(time, period, {}, 0, 0));
}

function bucketSample({ seconds, batches }, steps, time) {
  const sum = (key) => batches.reduce((count, batch) => count + batch[key], 0);
  const byTier = {};
  steps.forEach((depth, index) => {
    const rounds = batches.reduce((count, batch) => count + batch.rounds[index], 0);
    if (rounds) byTier[depth] = rounds;
  });
  return sampleOf(time, seconds, byTier, sum("tokens"), sum("requests"));
}

function offerRanges(changed) {
  const buttons = Object.entries(RANGES).map(([seconds, name]) => {
    const button = element("button", { type: "button", "aria-pressed": `${Number(seconds) === range}` }, name);
    button.addEventListener("click", () => {
      range = Number(seconds);
      sessionStorage.setItem(RANGE_KEY, range);
      for (const one of buttons) one.setAttribute("aria-pressed", one === button);
      changed();
    });
    return button;
  });
  byId("ranges").replaceChildren(...buttons);
}
