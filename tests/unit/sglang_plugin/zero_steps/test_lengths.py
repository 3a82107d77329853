"""Lengths on the host after zero-step rounds; `test_stepped` tests them with SGLang's scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive.sglang_plugin.stages.zero_steps.inputs import KnownLengths

UNREAD: list[Any] = []
"""Batches whose lengths nothing reads on the host."""


@pytest.fixture
def lengths() -> KnownLengths:
    return KnownLengths(lambda batch: batch in UNREAD)


class FutureMap:
    """Waits for lengths when they are needed, like SGLang's."""

    needs_cpu_seq_lens = True

    def __init__(self) -> None:
        self.waits = 0

    def resolve(self, batch: Any) -> None:
        if batch.spec_info is not None and self.needs_cpu_seq_lens:
            self.waits += 1


def _batch(*requests: str, lengths: list[int] | None = None, prefill: bool = False) -> Any:
    spec_info = None if prefill else SimpleNamespace(future_indices=torch.arange(len(requests)))
    on_host = None if lengths is None else torch.tensor(lengths)
    return SimpleNamespace(reqs=list(requests), spec_info=spec_info, seq_lens_cpu=on_host, seq_lens_sum=None)


def _resolved(
    lengths: KnownLengths, future_map: FutureMap, batch: Any, unread: bool = False
) -> tuple[list[int] | None, int | None]:
    UNREAD[:] = [batch] if unread else []
    lengths.lengths_on_host(FutureMap.resolve, future_map, batch)
    return None if batch.seq_lens_cpu is None else batch.seq_lens_cpu.tolist(), batch.seq_lens_sum


@pytest.mark.parametrize(
    ("between", "asked", "waits"),
    [
        (None, "a", 0),
        (_batch("a"), "a", 1),  # a drafted round: it was not reported as a zero-step round
        (None, "a new", 1),
        (_batch("other", prefill=True), "a", 0),
        (_batch("a", prefill=True), "a", 1),
    ],
    ids=["known", "drafted", "unknown length", "prefill of another", "prefilled again"],
)
def test_what_is_not_known_is_waited_for(lengths: KnownLengths, between: Any, asked: str, waits: int) -> None:
    lengths.before_zero_steps(_batch("a", lengths=[5]))
    if between is not None:
        _resolved(lengths, FutureMap(), between)
    future_map = FutureMap()
    known = _resolved(lengths, future_map, _batch(*asked.split()))
    assert future_map.waits == waits and known == ((None, None) if waits else ([6], 6))


def test_lengths_that_the_backend_does_not_need_stay_away(lengths: KnownLengths) -> None:
    future_map = FutureMap()
    future_map.needs_cpu_seq_lens = False
    lengths.before_zero_steps(_batch("a", lengths=[5]))
    assert _resolved(lengths, future_map, _batch("a")) == (None, None)


def test_lengths_that_nobody_reads_are_not_waited_for(lengths: KnownLengths) -> None:
    """Nor are they reported if known, and nothing of them remains a round later."""
    future_map = FutureMap()
    lengths.before_zero_steps(_batch("a", lengths=[5]))
    for _ in range(2):
        assert _resolved(lengths, future_map, _batch("a"), unread=True) == (None, None)
    assert future_map.waits == 0 and future_map.needs_cpu_seq_lens
    assert _resolved(lengths, future_map, _batch("a")) == (None, None) and future_map.waits == 1


def test_after_a_fault_every_round_is_waited_for(lengths: KnownLengths) -> None:
    future_map = FutureMap()
    lengths.before_zero_steps(_batch("a", "b", lengths=[5]))  # fewer lengths than requests
    assert lengths.guard.closed
    _resolved(lengths, future_map, _batch("a"))
    assert future_map.waits == 1


def test_an_error_of_sglangs_leaves_its_setting(lengths: KnownLengths) -> None:
    def fails(future_map: Any, batch: Any) -> None:
        raise RuntimeError("no device")

    future_map = FutureMap()
    lengths.before_zero_steps(_batch("a", lengths=[5]))
    with pytest.raises(RuntimeError, match="no device"):
        lengths.lengths_on_host(fails, future_map, _batch("a"))
    assert future_map.needs_cpu_seq_lens
