"""What NGRAM changes in SGLang's arguments and in its scheduler, read before its worker is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def steps_by_breadth(server_args: Any) -> None:
    """Set SGLang's resolved steps to width / topk; the width has the launch steps.

    Adaptive speculation keeps the launch steps of every algorithm in ``speculative_num_steps``. For NGRAM SGLang
    expects width / topk there, and reserves topk times steps of KV slots a request.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        steps = cfg.speculative_num_draft_tokens // cfg.speculative_eagle_topk
        declare_resolution(server_args, "sglang_adaptive", speculative_num_steps=steps)


def needs_lengths_on_host(original: Callable[..., bool], attn_backends: Sequence[Any]) -> bool:
    """Whether rounds need lengths on the host; for an adaptive NGRAM only where the attention backends do.

    With overlap the scheduler launches a round while the one before runs. SGLang 0.5.23 waits there for the lengths
    before every NGRAM round, because it builds a mask of each request's length on the host. The mask of a zero-step
    round may be too long, so such a round waits only where the attention backend needs lengths.
    """
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    if spec.speculative_algorithm != "NGRAM" or not spec.speculative_adaptive:
        return original(attn_backends)
    with spec.override(speculative_algorithm=None):
        return original(attn_backends)
