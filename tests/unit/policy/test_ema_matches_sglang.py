"""SGLang's EMA policy and ours, fed the same configurations and rounds, never differ."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.speculative import adaptive_spec_params as stock

from sglang_adaptive.lab.simulate.contenders import BUILT_IN_EMA
from sglang_adaptive.policy.choice import Coming
from sglang_adaptive.policy.config import check_config, load_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams as Ema
from sglang_adaptive.policy.observation import RoundObservation

EXAMPLES = 600
"""Of fourteen faults added to our policy, three draws each, the rarest took 302 examples to show, half at most 5."""

BATCH_SIZES = (1, 2, 3, 5, 7, 8, 9, 16, 24, 31, 32, 33, 48, 63, 64, 65, 128)
GRAPH_BATCH_SIZES: tuple[list[int] | None, ...] = (
    None, [], [1], [8, 4, 2, 1], [1, 2, 4, 8, 16, 24, 32], [6, 12, 40, 64, 70], [1, 8, 32, 64, 128, 256],
)  # fmt: skip
HYSTERESES = (-0.25, 0, 0.25, -0.5, 0.75, -1.5, 2)
TUNING = {
    "ema_alpha": (0.2, 0.05, 0.5, 0.9, 1, 1.0),
    "update_interval": (1, 2, 3, 5),
    "warmup_batches": (0, 1, 2, 4),
    "down_hysteresis": HYSTERESES,
    "up_hysteresis": HYSTERESES,
    "ceiling_coeff": (0, 0.5, 1, 1.2, 2.5),
}
LADDERS = ([1, 3, 7], [0, 1, 3], [1, 3, 5, 7], [0, 1, 2, 3, 5, 7], [0], [1], [7, 3, 3, 1])

# One draw of bytes gives configuration and rounds; a draw per number would take minutes.
EXAMPLE_BYTES = st.binary(min_size=90, max_size=130)


class Choices:
    """Reads an example's bytes as choices; exhausted bytes read as zero, the simplest choice."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def below(self, limit: int) -> int:
        return next(self._left, 0) % limit

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def ladder(self) -> list[int]:
        known = self.below(len(LADDERS) + 5)
        return LADDERS[known] if known < len(LADDERS) else [self.below(33) for _ in range(1 + self.below(6))]

    def tuning(self) -> dict[str, Any]:
        given = self.below(256)
        return {key: self.of(values) for bit, (key, values) in enumerate(TUNING.items()) if given >> bit & 1}

    def config(self) -> dict[str, Any]:
        slots = {str(self.of(BATCH_SIZES)): {"candidate_steps": self.ladder(), **self.tuning()}
                 for _ in range(1 + self.below(4))}  # fmt: skip
        return {**self.tuning(), **slots}

    def rounds(self) -> Iterator[tuple[int, int, int]]:
        """Yield runs of rounds: batch size, share of the depth accepted, how uneven the requests are."""
        for batch, level, spread in zip(*[self._left] * 3, strict=False):
            for _ in range(1 + spread % 8):
                yield BATCH_SIZES[batch % len(BATCH_SIZES)], level, spread


@pytest.fixture(autouse=True)
def _quiet_sglang() -> Iterator[None]:
    logger = logging.getLogger(stock.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def accepted(steps: int, batch_size: int, level: int, spread: int) -> list[int]:
    """Return the accepted drafts of each request, 0..steps; every eighth level means a round without requests."""
    if level % 8 == 7:
        return []
    centre = level * (steps + 1) // 256
    return [min(steps, max(0, centre + (request * spread) % 3 - 1)) for request in range(min(batch_size, 5))]


def assert_same_state(theirs: Any, ours: Ema) -> None:
    for slot, (_, reference) in zip(ours.slots, sorted(theirs._slots.items()), strict=True):
        assert slot.current_steps == reference.current_steps
        assert slot.ema_accept_len == reference.ema_accept_len  # to the last bit


def drive(theirs: Any, ours: Ema, rounds: Iterable[tuple[int, int, int]]) -> Counter[str]:
    """Feed every round to SGLang's policy and to ours; count the decisions."""
    seen: Counter[str] = Counter()
    for batch_size, level, spread in rounds:
        steps = theirs.get_steps_for_batch(batch_size)
        choice = ours.choose(Coming(batch_size))
        assert steps == choice.steps
        counts = accepted(steps, batch_size, level, spread)
        answer = theirs.on_verify_complete(list(counts), batch_size)
        ours.observe(RoundObservation(choice, counts, batch_size))
        assert ours.choose(Coming(batch_size)).steps == (steps if answer is None else answer)
        assert_same_state(theirs, ours)
        seen["rounds"] += 1
        seen["empty"] += not counts
        if answer is not None:
            seen["up" if answer > steps else "down"] += 1
            seen["to zero"] += answer == 0
            seen["from zero"] += steps == 0
            ladder = theirs._route(batch_size).candidate_steps
            seen["two tiers or more"] += abs(ladder.index(answer) - ladder.index(steps)) > 1
    return seen


def test_random_histories(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=EXAMPLE_BYTES)
    def check(data: bytes) -> None:
        choices = Choices(data)
        path.unlink(missing_ok=True)  # some file systems flush a file that is truncated and written again
        path.write_text(json.dumps(choices.config()))
        initial, graphs = choices.below(11), choices.of(GRAPH_BATCH_SIZES)
        theirs = stock.AdaptiveSpeculativeParams(initial, str(path))
        config = load_config(path)
        ours = Ema(initial, config.options)
        assert ours.candidate_steps == theirs.candidate_steps
        assert config.candidate_steps == theirs.candidate_steps
        assert_same_state(theirs, ours)
        for policy in (theirs, ours):
            policy.set_cuda_graph_bs(graphs)
        for step in (*theirs.candidate_steps, 33):
            assert ours.cuda_graph_bs_for_step(step) == theirs.cuda_graph_bs_for_step(step)
        seen.update(drive(theirs, ours, choices.rounds()))
        seen["examples"] += 1

    check()
    assert seen["examples"] >= EXAMPLES
    # The histories must reach every kind of decision, or the comparison proves little.
    for kind in ("up", "down", "to zero", "from zero", "two tiers or more", "empty"):
        assert seen[kind] > EXAMPLES / 10, (kind, seen)


def test_built_in_slots_are_sglangs() -> None:
    theirs, ours = stock.AdaptiveSpeculativeParams(3), Ema(3, check_config(BUILT_IN_EMA, "test").options)
    assert ours.candidate_steps == stock.resolve_candidate_steps_from_config()
    for slot, (_, reference) in zip(ours.slots, sorted(theirs._slots.items()), strict=True):
        found = {name: getattr(slot, name) for name in ("candidate_steps", "current_steps", "ema_accept_len")}
        found |= {name: getattr(slot.config, name) for name in TUNING}
        assert found == {name: getattr(reference, name) for name in found}
    for batch_size in range(200):
        assert ours.choose(Coming(batch_size)).steps == theirs.get_steps_for_batch(batch_size)


@pytest.mark.parametrize("preset", ["conservative", "aggressive"])
def test_presets_mean_the_same_to_sglang(preset: str) -> None:
    path = str(Path(__file__).parents[3] / "configs" / f"{preset}.json")
    config = load_config(path)
    assert config.candidate_steps == stock.resolve_candidate_steps_from_config(path)
    theirs = stock.AdaptiveSpeculativeParams(3, path)
    rounds = Choices(bytes((71 * n) % 256 for n in range(6000))).rounds()
    seen = drive(theirs, Ema(3, config.options), rounds)
    assert seen["up"] and seen["down"]
