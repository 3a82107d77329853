"""Reads the lengths of NGRAM's requests on the host in the rounds that need them, not before every round.

With overlap the scheduler launches a round while the one before runs. SGLang 0.5.23 waits there for the lengths before
every NGRAM round, because it builds a mask of each request's length on the host. The mask of a zero-step round may be
too long (``ngram_roots``), so such a round waits only where the attention backend needs lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def needed_on_host(original: Callable[..., bool], attn_backends: Sequence[Any]) -> bool:
    """Around the scheduler's decide_needs_cpu_seq_lens: for an adaptive NGRAM, only what the backends need."""
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    if spec.speculative_algorithm != "NGRAM" or not spec.speculative_adaptive:
        return original(attn_backends)
    with spec.override(speculative_algorithm=None):
        return original(attn_backends)


def read_lengths(batch: Any) -> None:
    """Set the lengths of *batch* on the host where the scheduler has not; waits for the round before."""
    if batch.seq_lens_cpu is None:
        batch.seq_lens_cpu = batch.seq_lens.cpu()
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
