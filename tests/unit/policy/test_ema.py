"""What the EMA policy has beyond SGLang's: its snapshot, its thresholds, and late rounds.

How it decides is compared with SGLang's own: see test_ema_matches_sglang.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams, AdaptiveStepSlot, SlotConfig
from sglang_adaptive.policy.observation import RoundObservation

THREE_SLOTS = {"4": {"candidate_steps": [2]}, "8": {"candidate_steps": [3]}, "32": {"candidate_steps": [5]}}


def policy(graphs: list[int] | None = None) -> AdaptiveSpeculativeParams:
    built = AdaptiveSpeculativeParams(3, check_config(THREE_SLOTS, "test").options)
    built.set_cuda_graph_bs(graphs)
    return built


@pytest.mark.parametrize(
    "graphs",
    [None, [1, 2], [4], [6, 20], [5, 9], [40], [1, 2, 4, 8, 16, 24, 32], [1, 8, 32, 64], [33, 34]],
)  # fmt: skip
def test_shown_ranges_are_the_batches_that_route_there(graphs: list[int] | None) -> None:
    tested = policy(graphs)
    served: dict[int, list[int]] = {}
    for batch_size in range(1, 200):
        served.setdefault(tested.choose(Coming(batch_size)).steps, []).append(batch_size)
    for slot in tested.snapshot()["slots"]:
        batches = served.get(slot["steps"])
        if batches is None:
            assert slot["batch_range"] is None
        else:
            last = None if batches[-1] == 199 else batches[-1]
            assert slot["batch_range"] == [batches[0], last]


def test_slots_learn_apart_and_show_it() -> None:
    config = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0,
              "1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1, 3]}}  # fmt: skip
    tested = AdaptiveSpeculativeParams(3, check_config(config, "test").options)
    tested.observe(RoundObservation(drafted(3), [0, 0], 2))
    assert tested.choose(Coming(2)).steps == 1
    for late in ([3] * 8, [3, 3]):  # the second was drafted before its slot's switch, and is left out
        tested.observe(RoundObservation(drafted(3), late, len(late)))
        assert (tested.choose(Coming(8)).steps, tested.choose(Coming(2)).steps) == (3, 1)
    tested.observe(RoundObservation(drafted(1), [1, 1], 2))
    assert tested.choose(Coming(2)).steps == 3
    shown = tested.snapshot()
    assert json.loads(json.dumps(shown)) == shown == {
        "policy": "ema",
        "slots": [
            {"batch_range": [1, 7], "steps": 3, "ema_accept_len": 1.0, "drop_at": 0.25,
             "rise_above": None, "batches": 2, "stale_rounds": 1, "candidate_steps": [1, 3]},
            {"batch_range": [8, None], "steps": 3, "ema_accept_len": 3.0, "drop_at": 0.25,
             "rise_above": None, "batches": 1, "stale_rounds": 0, "candidate_steps": [1, 3]},
        ],
    }  # fmt: skip


AT_ONCE = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0, "down_hysteresis": 0.0}


def slot(ladder: list[int], steps: int, **tuning: Any) -> AdaptiveStepSlot:
    """Return a slot at *steps* that decides after every round, from that round alone."""
    return AdaptiveStepSlot(steps, SlotConfig(1, tuple(ladder), **(AT_ONCE | tuning)))


def after(mean: float, ladder: list[int], steps: int, **tuning: Any) -> int:
    """Return the steps after one round in which requests accept *mean* drafts on average (in quarters)."""
    tested = slot(ladder, steps, **tuning)
    quarters = round(mean * 4)
    counts = [quarters // 4 + (request < quarters % 4) for request in range(4)]
    tested.update(counts)
    return tested.current_steps


@pytest.mark.parametrize(
    ("ladder", "steps", "expected"),
    [
        ([1, 3, 7], 1, (None, 0.75)),
        ([1, 3, 7], 3, (0.25, 2.75)),
        ([1, 3, 7], 7, (2.25, None)),
        ([0, 1, 3], 1, (0.25, 0.75)),
        ([0, 1, 3], 0, (None, None)),
    ],
)
def test_thresholds_are_those_that_decide(
    ladder: list[int], steps: int, expected: tuple[float | None, float | None]
) -> None:
    tuning = {"down_hysteresis": -0.25, "up_hysteresis": 0.25}
    drop_at, rise_above = slot(ladder, steps, **tuning).thresholds
    assert (drop_at, rise_above) == expected
    if drop_at is not None:
        assert after(drop_at, ladder, steps, **tuning) < steps == after(drop_at + 0.25, ladder, steps, **tuning)
    if rise_above is not None:
        assert after(rise_above, ladder, steps, **tuning) == steps < after(rise_above + 0.25, ladder, steps, **tuning)
