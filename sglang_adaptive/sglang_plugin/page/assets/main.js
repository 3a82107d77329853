// Ask, draw, ask again a second later; nothing is asked while the tab is hidden or the page paused.

const POLL_MS = 1000;
const TIMEOUT_MS = 10000;
const SCHEMA = 1;
const KEY = "sglang-adaptive-key";

const histories = new Map();
let answer = null; // the latest data
let chosenRank = 0;
let silentSince = null; // Unix seconds of the first of the polls that failed in a row
let timer = null;
let asking = false;
let paused = false;

async function poll() {
  clearTimeout(timer);
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    await ask();
  } finally {
    asking = false;
  }
  if (byId("key-form").hidden) timer = setTimeout(poll, POLL_MS);
}

function keyHeaders() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function ask() {
  const key = sessionStorage.getItem(KEY);
  const headers = keyHeaders();
  let response;
  let body;
  try {
    response = await fetch("adaptive.json", { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    body = response.status === 401 ? null : await response.json();
  } catch {
    silentSince ??= Date.now() / 1000;
    return showGone(silentSince);
  }
  if (response.status === 401) {
    sessionStorage.removeItem(KEY);
    byId("forget").hidden = true;
    return showLocked(key !== null);
  }
  byId("forget").hidden = key === null;
  if (response.status === 503) {
    silentSince ??= Date.now() / 1000;
    return showWaiting(silentSince);
  }
  silentSince = null;
  if (!response.ok) return showFailed(body.error?.message ?? `The server answers with status ${response.status}.`);
  if (body.version !== SCHEMA) return showFailed("The server's data is of another version than this page; load it again.");
  // Without the record the charts wait for it; the rest of the page does not.
  if (body.ranks.some((rank) => rank.active)) await refreshRecord(headers).catch(() => {});
  take(body);
}

function take(data) {
  answer = data;
  for (const rank of data.ranks) {
    if (!histories.has(rank.dp_rank)) histories.set(rank.dp_rank, new History());
    histories.get(rank.dp_rank).add(data.time, rank);
  }
  offerRanks(data.ranks);
  const { sglang, sglang_adaptive: own } = data.versions;
  write(byId("versions"), `SGLang ${sglang}, sglang-adaptive ${own}.`);
  const { rank, history } = chosen();
  showState(stateOf(rank, history));
  draw();
}

function chosen() {
  const rank = answer.ranks.find((one) => one.dp_rank === chosenRank) ?? answer.ranks[0];
  return { rank, history: histories.get(rank.dp_rank) };
}

/** Draw the latest answer, which may be an old one: the state on top is another matter. */
function draw() {
  if (!answer) return;
  const { rank, history } = chosen();
  const policy = rank.policy ? `, ${rank.policy === "ema" ? "EMA" : rank.policy} policy` : "";
  write(byId("served"), `${answer.model}${policy}`);
  byId("content").hidden = !rank.active;
  drawWorth(rank);
  if (!rank.active) return;
  drawAlarms(answer.ranks, answer.time);
  const kept = rankRecord(rank.dp_rank);
  drawFigures(rank, history.latest);
  drawOverTime(rank, history, kept);
  drawHistoryTable(kept);
  drawByBatch(rank, kept);
  for (const [id, key, show] of [["rates", "rates", drawRates], ["slots", "slots", drawSlots], ["costs", "cost_table", drawCosts], ["audit", "audit", drawAudit]]) {
    byId(id).hidden = !rank[key];
    if (rank[key]) show(rank);
  }
  drawAcceptance(rank, history);
  byId("lengths").hidden = rank.accepted_by_length.filter((bin) => bin.requests).length < 2;
  if (!byId("lengths").hidden) drawLengths(rank);
  drawSwitches(rank, answer.time);
}

function drawOverTime(rank, history, kept) {
  const samples = kept?.samples ?? [];
  const axis = timeAxis(kept, answer.time, byId("depth-chart").clientWidth);
  drawDepth(byId("depth-chart"), { samples, switches: history.switches, unseenBefore: history.unseenBefore }, rank, axis);
  drawLine(byId("rate-chart"), "rate", "Tokens a second", samples, "tokensPerSecond", axis, { from: 0 });
  drawLine(byId("length-chart"), "length", "Accept length", samples, "acceptLength", axis, { from: 1 });
}

function drawCosts(rank) {
  drawCostLegend(rank);
  drawCostMap(rank);
}

function offerRanks(ranks) {
  byId("rank-choice").hidden = ranks.length < 2;
  if (byId("rank").options.length === ranks.length) return;
  byId("rank").replaceChildren(...ranks.map(({ dp_rank: rank }) => element("option", { value: rank }, `${rank}`)));
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", paused);
  poll();
});
byId("rank").addEventListener("change", () => {
  chosenRank = Number(byId("rank").value);
  take(answer);
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value);
  byId("key").value = "";
  poll();
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  location.reload();
});
byId("history").addEventListener("toggle", draw);
offerRanges(() => refreshRecord(keyHeaders()).then(draw, () => {}));
document.addEventListener("visibilitychange", poll);
window.addEventListener("resize", draw);
poll();
