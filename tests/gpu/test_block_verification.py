"""Block verification, which SGLang has only on a GPU: it serves at every depth, and parameters are then SGLang's.

SGLang accepts by the draft's probabilities there, so "exact" is off and says why. Greedy requests stay lossless, and
sampled ones keep their distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sglang_adaptive.audit import sampled
from sglang_adaptive.client import Client
from tests.campaign.clients import samples_of
from tests.engine.workload import adaptive, rotating_depth, run
from tests.gpu.servers import CASES, STARTS, TIERS, Line, run_while_switching, serving_together, tiny_pair

MANY = ("--max-running-requests", "32", "--cuda-graph-max-bs-decode", "32")
KINDS = [kind for kind in sampled.KINDS if "min_p" not in kind]
"""SGLang's rejection sampling leaves min_p out."""
SAMPLES = 300


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Client]]:
    """Yield a server without speculation, and one that adapts with block verification."""
    folder = tmp_path_factory.mktemp("servers")
    pair, blocks = tiny_pair(folder, "fa3"), ("--speculative-use-block-verification", *MANY)
    lines = (
        Line(folder / "plain.log", pair, "fa3", extra=("--disable-overlap-schedule", *MANY)),
        Line(folder / "ours.log", pair, "fa3", TIERS, extra=blocks),
    )
    with serving_together(*lines) as found:
        yield found


def test_greedy_texts_are_those_without_speculation(
    servers: list[Client], record_property: Callable[[str, object], None]
) -> None:
    plain, ours = servers
    wanted = run(plain, CASES, 1)
    for steps in TIERS:
        ours.force_steps(steps)
        same = sum(one == other for one, other in zip(run(ours, CASES, 1), wanted, strict=True))
        record_property(f"{steps} steps", same)
        assert same >= len(CASES) - 1, "more than a tie of bfloat16"
    run_while_switching(ours)
    state = adaptive(ours)
    assert all(state["rounds_by_tier"][str(steps)] > 0 for steps in TIERS)
    assert state["accepted_by_tier"]["7"] > 0 and not state["degraded"]


def test_it_says_what_is_off(servers: list[Client]) -> None:
    off = adaptive(servers[1])["off"]
    assert "--speculative-use-rejection-sampling" in off["exact"]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_tokens_come_as_often_as_without_speculation(
    how: dict[str, float], servers: list[Client], record_property: Callable[[str, object], None]
) -> None:
    plain, ours = servers
    wanted = samples_of(plain, STARTS[0], how, SAMPLES)
    for steps in (0, 7, None):
        ours.force_steps(steps)
        if steps is None:
            with rotating_depth(ours):
                drawn = samples_of(ours, STARTS[0], how, SAMPLES)
        else:
            drawn = samples_of(ours, STARTS[0], how, SAMPLES)
        least = min(p for _, _, p in sampled.compared(drawn, wanted))
        record_property(str(steps), least)
        assert least >= sampled.ALPHA, f"{how}, {steps} steps"
