"""The worked example of docs/how-it-decides.md, recomputed with the policies from what the page itself says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from sglang_adaptive.policy.ema.ema_slot import AdaptiveStepSlot
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile.profile_json import loads_profile
from sglang_adaptive.policy.profile.shipped import shipped_config
from sglang_adaptive.policy.throughput.acceptance.estimator import PRIOR_ACCEPTANCE, PRIOR_TRIALS
from sglang_adaptive.policy.throughput.acceptance.ratio_deviation import ratio_deviation
from sglang_adaptive.policy.throughput.choice.conviction import DOUBT, PATIENCE
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy

PAGE = (Path(__file__).parents[4] / "docs" / "how-it-decides.md").read_text()
EXAMPLE = PAGE.split("<!-- example: begin -->")[1].split("<!-- example: end -->")[0]
ROUND = json.loads(re.findall(r"```json\n(.*?)```", EXAMPLE, re.S)[0])
POSITIONS, RATES, VERDICT = [
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
    known = policy.snapshot()["acceptance"]
    assert len(POSITIONS) == len(known)
    for (position, reached, accepted, trials, h), row in zip(POSITIONS, known, strict=True):
        at = int(position)
        drafted = at <= ROUND["steps"]
        assert int(reached) == (sum(count >= at - 1 for count in ROUND["accepted"]) if drafted else 0)
        assert int(accepted) == (sum(count >= at for count in ROUND["accepted"]) if drafted else 0)
        assert (row["position"], f"{row['trials']:.4f}", f"{row['probability']:.4f}") == (at, trials, h)


def test_rates(policy: ThroughputPolicy) -> None:
    batch = len(ROUND["accepted"])
    policy.get_steps_for_batch(batch)
    shown = [
        [
            str(rate["steps"]),
            f"{rate['tokens_per_round'] / batch:.3f}",
            f"{1000 * rate['seconds']:.3f}",
            f"{rate['tokens_per_second']:.0f}",
        ]
        for rate in policy.snapshot()["rates"]
    ]
    assert shown == RATES


def test_choice(policy: ThroughputPolicy) -> None:
    live, batch = ROUND["steps"], len(ROUND["accepted"])
    rates = {rate["steps"]: rate["tokens_per_second"] for rate in policy.snapshot()["rates"]}
    best = max(rates, key=lambda steps: rates[steps])
    deviation = ratio_deviation(policy._acceptance, live, best)
    assert dict(VERDICT) == {
        "best depth": str(best),
        f"its gain over {live} steps": f"{rates[best] / rates[live] - 1:.2%}",
        f"standard deviation of ln(E[{best}] / E[{live}])": f"{deviation:.2%}",
        "gain that is demanded, with k = 1": f"{policy.options.margin + DOUBT * (1 - 1 / PATIENCE) * deviation:.2%}",
        "depth of the next round": str(policy.get_steps_for_batch(batch)),
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
    from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
    from sglang_adaptive.policy.throughput import policy
    from sglang_adaptive.policy.throughput.acceptance import change, shape
    from sglang_adaptive.policy.throughput.acceptance import estimator as acceptance
    from sglang_adaptive.policy.throughput.acceptance import regions as by_batch
    from sglang_adaptive.policy.throughput.choice import conviction, guard, prober, probing, standing_batch
    from sglang_adaptive.policy.throughput.cost import cost_learnt, readings

    options = ThroughputOptions()
    said = {
        f"`shrinkage` ({options.shrinkage:g} trials)",
        f"learnt {acceptance.SHAPE_MEMORIES} times more slowly",
        f"(hits_j + {shape.PRIOR_TRIALS:g} * {shape.PRIOR_STEP:g}) / (reached_j * h_(j-1) + {shape.PRIOR_TRIALS:g})",
        f"held within {shape.LOWEST:g} and {shape.HIGHEST:g}",
        f"of a round's weight away, 1/{options.memory_rounds}",
        f"`n / (1 + n/{acceptance.SATURATION:g})`",
        f"position 1 has {acceptance.PRIOR_TRIALS:g} trials of {acceptance.PRIOR_ACCEPTANCE:g}",
        f"no h is above {acceptance.HIGHEST:g}",
        f"`h'` has log-odds {change.SHIFT:g} higher, and at least {change.WORTH_TRYING:g}",
        f"{change.FAR_SHIFT:g} higher for the second",
        f"{change.FAR_MORE:g} nat more for the second",
        f"{change.SHIFT:g} lower, and at most `{change.FALL:g} * h`",
        f"`change_threshold` ({options.change_threshold:g} nats)",
        f"takes {change.DOUBLED:.2f} nats more after {change.LASTING_ROUNDS} rounds without a change, and again",
        f"At zero steps {change.SCARCE:.0%} of that is enough",
        f"the median of {readings.RING} readings",
        f"the median of {readings.JUMP_READINGS} readings is off by more than {readings.JUMP:.0%}, and by "
        f"{readings.JUMP_SPREADS:g} times the readings' own",
        "The readings have to be of rounds in a row",
        f"has changed and {policy.CONFIRM_ROUNDS} rounds later is still another one",
        f"those of fewer than {cost_learnt.FEW} readings do not",
        f"not being timed move {cost_learnt.DRIFT_SHARE:.0%} as far",
        f"comes back after {readings.ABSENT_ROUNDS} rounds",
        f"margin + {conviction.DOUBT:g} * (1 - k / {conviction.PATIENCE}) * sd",
        f"for {conviction.CALM_ROUNDS} rounds, it asks for {conviction.CALM_DOUBT:g} * (1 - k / "
        f"{conviction.CALM_PATIENCE:,}) * sd",
        f"a factor of {standing_batch.NEARBY:g} counts once it has lasted for {standing_batch.BRIEF_ROUNDS} rounds",
        f"first {readings.FRESH} readings of a stay are kept, then every {readings.THIN}th, and after {readings.LONG} "
        f"every {readings.THINNER}th",
        f"that are {math.exp(readings.STALL) - 1:.0%} too long are set aside, up to {readings.STALL_ROUNDS} rounds in "
        "a row",
        f"fewer than {policy.WELL_HEARD:g} trials, has {change.PROMISING:g} nat of evidence",
        f"promise {policy.ZERO_MARGIN:.0%} more than zero steps to go on and {2 * policy.ZERO_MARGIN:.0%} to begin",
        f"For each round that the worst stretch within {guard.WINDOW_ROUNDS} rounds has lost, drafting must promise "
        f"{guard.DOUBT_PER_LOST:g} standard deviations",
        f"from {guard.WARY:g} lost, half the evidence is enough",
        f"waits for {prober.QUIET_ROUNDS} rounds in a row at one batch size, but no more than {prober.MOST_WAIT}",
        f"taken to hold for {prober.HORIZON_ROUNDS:g} rounds",
        f"`probe_budget` ({options.probe_budget:.1%} of the time served)",
        f"plus an allowance of {probing.ALLOWANCE_ROUNDS:g} rounds",
    }
    words = " ".join(PAGE.split())
    missing = [text for text in said if " ".join(text.split()) not in words]
    assert not missing
    assert (by_batch.SIGMAS, change.WARY) == (3.0, 0.5), "in words on the page"
    assert options.margin == 0.01 and "what goes on promising 1% is taken" in words


def test_the_codes_of_why() -> None:
    source = (Path(__file__).parents[4] / "sglang_adaptive" / "policy" / "throughput" / "report.py").read_text()
    shown = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert sorted(shown) == sorted(re.findall(r'\bcode\b.* = \(?"(\w+)"', source))


def test_the_arithmetic_between_the_tables(policy: ThroughputPolicy) -> None:
    h = {f"h_{position}": float(value) for position, *_, value in POSITIONS}
    words = " ".join(EXAMPLE.split())
    worked = dict(re.findall(r"`(h_\d) = ([^`]+)`", words))
    assert set(worked) == {"h_1", "h_2", "h_4"}
    for name, formula in worked.items():
        assert eval(formula, {"__builtins__": {}}, h) == pytest.approx(h[name], abs=6e-5), name
    results = re.findall(r"`([\d +*/()-]+) = ([\d.]+)`", words)
    assert [result for _, result in results] == ["5.333", "1.979"]
    for formula, result in results:
        assert eval(formula, {"__builtins__": {}}) == pytest.approx(float(result), abs=6e-4)
    faded = PRIOR_TRIALS * PRIOR_ACCEPTANCE * (1.0 - 1.0 / policy.options.memory_rounds)
    assert f"and {faded:.4f} of its hits are left" in words
