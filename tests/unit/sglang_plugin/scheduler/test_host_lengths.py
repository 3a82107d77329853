"""Lengths on the host after zero-step rounds; with SGLang's scheduler they are tested in `test_stepped`."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive.sglang_plugin.scheduler import host_lengths
from sglang_adaptive.sglang_plugin.scheduler.host_lengths import ExpectedLengths, expect, resolve
from tests import checks


@pytest.fixture(autouse=True)
def nothing_expected() -> Iterator[None]:
    host_lengths._lengths = ExpectedLengths()
    with checks.not_in_use_afterwards(host_lengths._fallback):
        yield


class FutureMap:
    """Waits for the lengths where they are needed, as SGLang's does."""

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


def _resolved(future_map: FutureMap, batch: Any) -> tuple[list[int] | None, int | None]:
    resolve(FutureMap.resolve, future_map, batch)
    return None if batch.seq_lens_cpu is None else batch.seq_lens_cpu.tolist(), batch.seq_lens_sum


def test_each_request_is_one_token_longer_after_a_zero_step_round() -> None:
    future_map = FutureMap()
    expect(None, _batch("a", "b", lengths=[5, 70]))
    assert _resolved(future_map, _batch("b", "a")) == ([71, 6], 77) and future_map.waits == 0
    assert future_map.needs_cpu_seq_lens


def test_a_drafted_round_is_waited_for() -> None:
    """Nobody said that the round between was one of zero steps."""
    future_map = FutureMap()
    expect(None, _batch("a", lengths=[5]))
    for waits in (0, 1):
        _resolved(future_map, _batch("a"))
        assert future_map.waits == waits


def test_a_batch_with_a_request_of_unknown_length_is_waited_for() -> None:
    future_map = FutureMap()
    expect(None, _batch("a", lengths=[5]))
    assert _resolved(future_map, _batch("a", "new")) == (None, None) and future_map.waits == 1


def test_a_request_that_is_prefilled_again_is_waited_for() -> None:
    """A prefill of others, between two decode rounds, changes nothing."""
    for prefilled, waits in (("other", 0), ("a", 1)):
        future_map = FutureMap()
        expect(None, _batch("a", lengths=[5]))
        _resolved(future_map, _batch(prefilled, prefill=True))
        _resolved(future_map, _batch("a"))
        assert future_map.waits == waits


def test_lengths_that_the_backend_does_not_need_stay_away() -> None:
    future_map = FutureMap()
    future_map.needs_cpu_seq_lens = False
    expect(None, _batch("a", lengths=[5]))
    assert _resolved(future_map, _batch("a")) == (None, None)


def test_after_a_fault_every_round_is_waited_for() -> None:
    future_map = FutureMap()
    expect(None, _batch("a", "b", lengths=[5]))  # fewer lengths than requests
    assert host_lengths._fallback.in_use
    _resolved(future_map, _batch("a"))
    assert future_map.waits == 1


def test_an_error_of_sglangs_leaves_its_setting() -> None:
    def fails(future_map: Any, batch: Any) -> None:
        raise RuntimeError("no device")

    future_map = FutureMap()
    expect(None, _batch("a", lengths=[5]))
    with pytest.raises(RuntimeError, match="no device"):
        resolve(fails, future_map, _batch("a"))
    assert future_map.needs_cpu_seq_lens
