"""The worked example of docs/how-it-decides.md, recomputed with the policies from the page's own numbers."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from pathlib import Path

import pytest

from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.ema import AdaptiveStepSlot, SlotConfig
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import loads_profile, shipped_config
from sglang_adaptive.policy.throughput import ThroughputPolicy, acceptance, base_cost, lookups, probing, readings
from sglang_adaptive.policy.throughput.acceptance import EDGES, USUAL
from sglang_adaptive.policy.throughput.policy import SYNC_AFTER, ThroughputOptions

PAGE = (Path(__file__).parents[4] / "docs" / "how-it-decides.md").read_text()
EXAMPLE = PAGE.split("<!-- example: begin -->")[1].split("<!-- example: end -->")[0]
ROUND = json.loads(re.findall(r"```json\n(.*?)```", EXAMPLE, re.S)[0])
POSITIONS, TIMES = [
    [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()]
    for table in re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", EXAMPLE, re.M)
]


@pytest.fixture
def policy() -> ThroughputPolicy:
    """The policy after the example's only round."""
    name = f"profiles/{ROUND['profile']}.json"
    profile = loads_profile(shipped_config(name).read_text(), name)
    started = ThroughputPolicy(ROUND["steps"], None, profile)
    batch = len(ROUND["accepted"])
    assert started.choose(Coming(batch)).steps == ROUND["steps"]
    started.observe(RoundObservation(drafted(ROUND["steps"]), ROUND["accepted"], batch))
    return started


def test_positions(policy: ThroughputPolicy) -> None:
    estimator, bin = policy._acceptance, bisect_right(EDGES, USUAL)
    assert [int(position) for position, *_ in POSITIONS] == list(range(1, ROUND["steps"] + 2))
    for position, reached, accepted, trials, h in POSITIONS:
        at = int(position)
        drafted = at <= ROUND["steps"]
        assert int(reached) == (sum(count >= at - 1 for count in ROUND["accepted"]) if drafted else 0)
        assert int(accepted) == (sum(count >= at for count in ROUND["accepted"]) if drafted else 0)
        assert trials == f"{estimator._reached[bin][at - 1] / estimator._weight:.4f}"
        assert h == f"{estimator._chances[bin][at - 1]:.4f}"
    assert f"= {estimator._reached[bin][0] / estimator._weight:.3f}`" in EXAMPLE


def test_times(policy: ThroughputPolicy) -> None:
    slower = policy._acceptance.slower(ROUND["steps"])
    policy.choose(Coming(len(ROUND["accepted"])))
    rates = policy.snapshot()["rates"]
    shown = [
        [str(rate["steps"]), f"{rounds:.3f}", f"{1e3 * rate['seconds']:.3f}", f"{1e3 * rate['seconds'] * rounds:.3f}"]
        for rate, rounds in zip(rates, slower, strict=True)
    ]
    assert shown == TIMES


def test_choice(policy: ThroughputPolicy) -> None:
    live, slower = ROUND["steps"], policy._acceptance.slower(ROUND["steps"])
    chosen = policy.choose(Coming(len(ROUND["accepted"]))).steps
    rates = policy.snapshot()["rates"]
    times = {rate["steps"]: rate["seconds"] * rounds for rate, rounds in zip(rates, slower, strict=True)}
    best = min(times, key=lambda steps: times[steps])
    gain = times[live] / times[best] - 1.0
    verdict = f"{best} steps promise {gain:.2%} more speed than {live}, so {chosen} steps run next."
    assert verdict in " ".join(EXAMPLE.split())


def test_the_ema_policy_on_the_same_round() -> None:
    depths = re.search(r"depths (\d+), (\d+) and (\d+) sees", EXAMPLE)
    told = re.search(
        r"mean ([\d.]+) accepted, average from ([\d.]+) to ([\d.]+)\.\s+It stays, and would rise above (\d+\.\d+)",
        EXAMPLE,
    )
    assert depths and told
    slot = AdaptiveStepSlot(ROUND["steps"], SlotConfig(1, tuple(int(depth) for depth in depths.groups())))
    before = slot.ema_accept_len
    slot.update(ROUND["accepted"])
    mean = sum(ROUND["accepted"]) / len(ROUND["accepted"])
    assert told.groups() == (f"{mean:.3f}", f"{before:.3f}", f"{slot.ema_accept_len:.3f}", f"{slot.thresholds[1]}")
    assert slot.current_steps == ROUND["steps"]


def test_the_constants_that_the_page_names() -> None:
    options = ThroughputOptions()
    said = {
        f"level = level + {acceptance.GAIN:g} * (outcome - level)",
        f"`shrinkage` ({options.shrinkage:g} trials)",
        f"K * {acceptance.FALL:g} * h_(j-1)",
        f"over `memory_rounds` ({options.memory_rounds:,} rounds)",
        f"weigh like `n / (1 + n/{acceptance.SATURATION:g})`",
        f"forgotten over {acceptance.RECENT:g} trials",
        f"are {acceptance.PROOF:g} standard deviations away",
        "the weight of at most `shrinkage` trials in each bin",
        f"At a change from kind a to b within {readings.NEAR_ROUNDS} rounds",
        f"d(a, b) = middle(first {readings.SIDE} readings of b) - middle(last {readings.SIDE} readings of a)",
        f"A pair keeps its latest {readings.SIDE} differences, a kind its latest {readings.KEPT} readings",
        f"a single reading on a side has a weight of {readings.SINGLE:g}",
        f"Two differences that agree, {readings.CHANGED:g} off the earlier ones, start a pair anew",
        f"of a lone difference at least {readings.LONE:g}, {readings.LONE_NOISES:g} times the noise, or half its size",
        f"that of `g_k` is {base_cost.PROFILED:.0%} for profiled times and {base_cost.GUESSED:.0%} for others",
        f"{SYNC_AFTER} rounds after the start or a switch, after a probe, and every `sync_rounds`",
        f"until it has {probing.PROBE_ROUNDS} readings, at most {2 * probing.PROBE_ROUNDS} rounds",
        f"for {probing.HORIZON_ROUNDS:g} rounds, less its cost, comes to a round",
        f"it takes {probing.LOOK_ROUNDS} readings of a depth",
        f"With `c` its expected loss plus {probing.LEAST_COST:g}, in rounds",
        f"at this batch size after `{probing.FIRST:g} * c` rounds",
        f"at others after `{probing.REST:g} * c`, at most {probing.MOST_REST:,g}",
        f"were not verified for {probing.FIRST:g} rounds",
        f"Both wait for {probing.PROBE_ROUNDS} rounds in a row at one batch size",
        f"`probe_budget` ({options.probe_budget:.1%} of the time served)",
        f"at most {probing.ALLOWANCE_ROUNDS:g} rounds' worth, separate for each batch size",
        f"Looks at depths that ran before are {probing.PAUSE} rounds apart",
        f"once the draft was not seen for {probing.UNSEEN_ROUNDS} rounds",
        *(f"{drafts} for {sizes[0]} to {sizes[-1]} requests" for drafts, sizes in lookups.KINDS.items()),
        f"they may take {lookups.LOOKING:.1%} of the time, and at least {lookups.MOST_REST} rounds",
        f"is {lookups.MARGIN:.0%} above the live steps, plus {lookups.MARGIN_PER_LOST:.0%} for each round",
    }
    words = " ".join(PAGE.split())
    assert not [text for text in said if text not in words]
    assert probing.LEAST_GAIN_ROUNDS == 1.0, "in words on the page"


def test_the_codes_of_why() -> None:
    source = (Path(__file__).parents[4] / "sglang_adaptive" / "policy" / "throughput" / "choice.py").read_text()
    shown = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert sorted(shown) == sorted(re.findall(r'\bcode(?:": |\b.* = \(?)"(\w+)"', source))
