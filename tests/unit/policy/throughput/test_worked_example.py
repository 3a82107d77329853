"""The worked example of docs/how-it-decides.md, recomputed with the policies from the page's own numbers."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

import pytest

from sglang_adaptive.policy.ema import AdaptiveStepSlot
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import loads_profile, shipped_config
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.policy.throughput.acceptance import EDGES, USUAL

PAGE = (Path(__file__).parents[4] / "docs" / "how-it-decides.md").read_text()
EXAMPLE = PAGE.split("<!-- example: begin -->")[1].split("<!-- example: end -->")[0]
ROUND = json.loads(re.findall(r"```json\n(.*?)```", EXAMPLE, re.S)[0])
POSITIONS, BINS, TIMES, VERDICT = [
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
    assert started.get_steps_for_batch(batch) == ROUND["steps"]
    started.observe(RoundObservation(ROUND["steps"], ROUND["accepted"], batch))
    return started


def test_positions(policy: ThroughputPolicy) -> None:
    estimator, bin = policy._acceptance, bisect_right(EDGES, USUAL)
    assert len(POSITIONS) == estimator.depth
    for position, reached, accepted, trials, h in POSITIONS:
        at = int(position)
        drafted = at <= ROUND["steps"]
        assert int(reached) == (sum(count >= at - 1 for count in ROUND["accepted"]) if drafted else 0)
        assert int(accepted) == (sum(count >= at for count in ROUND["accepted"]) if drafted else 0)
        assert trials == f"{estimator._reached[bin][at - 1] / estimator._weight:.4f}"
        assert h == f"{estimator._chances[bin][at - 1]:.4f}"


def test_bins(policy: ThroughputPolicy) -> None:
    estimator, requests = policy._acceptance, len(ROUND["accepted"])
    limits = list(pairwise((0, *EDGES, 1)))
    shown = [
        [
            "{:g} to {:g}".format(*limits[bin]),
            f"{requests * share:g}",
            *(f"{estimator._tokens[bin][steps]:.3f}" for steps in estimator.ladder),
        ]
        for bin, share in estimator._mix.items()
    ]
    assert shown == BINS


def test_times(policy: ThroughputPolicy) -> None:
    slower = policy._acceptance.slower(ROUND["steps"])
    policy.get_steps_for_batch(len(ROUND["accepted"]))
    rates = policy.snapshot()["rates"]
    shown = [
        [str(rate["steps"]), f"{rounds:.3f}", f"{1e3 * rate['seconds']:.3f}", f"{1e3 * rate['seconds'] * rounds:.3f}"]
        for rate, rounds in zip(rates, slower, strict=True)
    ]
    assert shown == TIMES


def test_choice(policy: ThroughputPolicy) -> None:
    live = ROUND["steps"]
    chosen = policy.get_steps_for_batch(len(ROUND["accepted"]))
    times = {rate["steps"]: rate["times_running"] for rate in policy.snapshot()["rates"]}
    best = max(times, key=lambda steps: times[steps])
    gain, deviation = times[best] - 1.0, policy._acceptance.ratio_deviation(live, best)
    assert dict(VERDICT) == {
        "best depth": str(best),
        f"its gain over {live} steps": f"{gain:.2%}",
        f"standard deviation of ln(E[{best}] / E[{live}])": f"{deviation:.2%}",
        "gain less margin and standard deviation": f"{gain - policy.options.margin - deviation:.2%} of a round",
        "depth of the next round": str(chosen),
    }


def test_the_ema_policy_on_the_same_round() -> None:
    depths = re.search(r"depths (\d+), (\d+) and (\d+) sees", EXAMPLE)
    told = re.search(
        r"mean ([\d.]+) accepted, average from ([\d.]+) to ([\d.]+)\.\s+It stays, and would rise above (\d+\.\d+)",
        EXAMPLE,
    )
    assert depths and told
    slot = AdaptiveStepSlot(ROUND["steps"], {"candidate_steps": [int(depth) for depth in depths.groups()]})
    before = slot.ema_accept_len
    moved = slot.update(ROUND["accepted"])
    mean = sum(ROUND["accepted"]) / len(ROUND["accepted"])
    assert told.groups() == (f"{mean:.3f}", f"{before:.3f}", f"{slot.ema_accept_len:.3f}", f"{slot.thresholds[1]}")
    assert not moved


def test_the_constants_that_the_page_names() -> None:
    from sglang_adaptive.policy.throughput import acceptance, choice, policy, probing, readings

    options = policy.ThroughputOptions()
    said = {
        f"level = level + {acceptance.GAIN:g} * (outcome - level)",
        f"`shrinkage` ({options.shrinkage:g} trials)",
        f"the least slope is {acceptance.LEAST_SLOPE:g}",
        f"accepted {acceptance.FALL:g} times as often as the one before it until trials say otherwise",
        f"only the first {acceptance.FIRST_ROUNDS} rounds all of them",
        f"over `memory_rounds` ({options.memory_rounds:,} rounds)",
        f"`n / (1 + n/{acceptance.SATURATION:g})`",
        f"The first {readings.FRESH} readings after {readings.ABSENT_ROUNDS} rounds of absence",
        f"the median of every {readings.MEDIAN} readings",
        f"that are {math.exp(readings.STALL) - 1:.0%} too long are set aside, up to {readings.STALL_ROUNDS} rounds in "
        "a row",
        f"promise {choice.MARGIN:.0%} more than zero steps",
        f"at the best steps above 0 until {choice.ALLOWANCE:g} rounds are lost",
        f"both are forgotten over {choice.WINDOW_ROUNDS} rounds",
        f"For each round lost, drafting must promise {choice.DEVIATIONS_PER_LOST:g} standard deviations",
        f"A probe takes {probing.PROBE_ROUNDS} rounds. "
        f"It waits for {probing.QUIET_ROUNDS} rounds in a row at one batch size",
        f"taken to hold for {probing.HORIZON_ROUNDS:g} rounds",
        f"`probe_budget` ({options.probe_budget:.1%} of the time served)",
        f"at most {probing.ALLOWANCE_ROUNDS:g} rounds' worth",
        f"rests at this batch size for {probing.REST_ROUNDS:,} rounds",
        f"ends, up to {probing.ZERO_ROUNDS} rounds",
        f"more than {probing.SURPRISE:.0%} longer than expected",
        f"is repeated once after {probing.AGAIN_ROUNDS:,} rounds",
        f"differs by more than {readings.DISTURBED:.0%} from an earlier, shorter visit",
        f"from {readings.SHORT} readings on the later one",
        f"once the draft was not seen for {probing.UNSEEN_ROUNDS} rounds",
        f"fewer than {policy.WELL_SEEN:g} trials",
    }
    words = " ".join(PAGE.split())
    missing = [text for text in said if " ".join(text.split()) not in words]
    assert not missing
    assert choice.HOLD_ROUNDS == 0.1, "in words on the page"


def test_the_codes_of_why() -> None:
    source = (Path(__file__).parents[4] / "sglang_adaptive" / "policy" / "throughput" / "report.py").read_text()
    shown = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert sorted(shown) == sorted(re.findall(r'\bcode\b.* = \(?"(\w+)"', source))


def test_the_arithmetic_between_the_tables(policy: ThroughputPolicy) -> None:
    known = {f"h_{position}": float(value) for position, *_, value in POSITIONS}
    worked = re.findall(r"^    (\w+) += (.+)$", EXAMPLE, re.M)
    assert [name for name, _ in worked] == ["c", "h_1", "h_2", "h_4"]
    found: dict[str, float] = {"h_3": known["h_3"]}
    for name, formula in worked:
        found[name] = eval(formula, {"__builtins__": {}}, found)
        assert name not in known or found[name] == pytest.approx(known[name], abs=1e-4), name
    estimator = policy._acceptance
    assert f"{estimator.levels.usual:.4f} is the usual level" in EXAMPLE
    results = re.findall(r"`([\d +*/()-]+) = ([\d.]+)`", " ".join(EXAMPLE.split()))
    assert [result for _, result in results] == ["5.333"]
    for formula, result in results:
        assert eval(formula, {"__builtins__": {}}) == pytest.approx(float(result), abs=6e-4)
