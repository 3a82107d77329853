"""When the host is told the lengths of NGRAM's requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.overlap_utils import decide_needs_cpu_seq_lens
from sglang.srt.runtime_context import get_context, get_spec

from sglang_adaptive.sglang_plugin.workers.ngram_inputs import read_lengths
from sglang_adaptive.sglang_plugin.workers.ngram_setup import needs_lengths_on_host

DEVICE_ONLY, ON_HOST = SimpleNamespace(needs_cpu_seq_lens=False), SimpleNamespace(needs_cpu_seq_lens=True)


@contextmanager
def launched(**flags: Any) -> Iterator[None]:
    with get_context().override_server_args(), get_spec().override(**flags):
        yield


@pytest.mark.parametrize(("backends", "needed"), [((DEVICE_ONLY,), False), ((DEVICE_ONLY, ON_HOST), True)])
def test_an_adaptive_ngram_needs_what_its_backends_need(backends: tuple[Any, ...], needed: bool) -> None:
    with launched(speculative_algorithm="NGRAM", speculative_adaptive=True):
        assert needs_lengths_on_host(decide_needs_cpu_seq_lens, backends) is needed
        assert decide_needs_cpu_seq_lens(backends)  # SGLang's own answer, which this replaces
        assert get_spec().speculative_algorithm == "NGRAM"


def test_others_get_sglang_s_answer() -> None:
    with launched(speculative_algorithm="NGRAM", speculative_adaptive=False):
        assert needs_lengths_on_host(decide_needs_cpu_seq_lens, (DEVICE_ONLY,))
    with launched(speculative_algorithm="EAGLE3", speculative_adaptive=True):
        assert not needs_lengths_on_host(decide_needs_cpu_seq_lens, (DEVICE_ONLY,))


def test_lengths_are_read_once() -> None:
    batch = SimpleNamespace(seq_lens=torch.tensor([5, 7]), seq_lens_cpu=None, seq_lens_sum=None)
    read_lengths(batch)
    assert (batch.seq_lens_cpu.tolist(), batch.seq_lens_sum) == ([5, 7], 12)
    batch.seq_lens = None
    read_lengths(batch)
    assert batch.seq_lens_sum == 12
