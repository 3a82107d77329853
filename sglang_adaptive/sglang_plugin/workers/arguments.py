"""Changes for DFLASH and NGRAM to SGLang's arguments and scheduler; imported before their workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive.sglang_plugin.setup import model_config


def launch_block_is_widest(server_args: Any) -> None:
    """Let SGLang size buffers for the launch block, whatever the configuration lists.

    SGLang would size them for the most steps of the configuration, and rejects a wider block.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        server_args._max_speculative_num_draft_tokens = cfg.speculative_num_draft_tokens


def fixed_block_reason(server_args: Any) -> str | None:
    """Return why the width of this draft's blocks may not change; None if it may, or if the draft is unknown."""
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    found = model_config(server_args.speculative_draft_model_path)
    draft = parse_dflash_draft_config(draft_hf_config=found)
    if draft.is_domino:
        return "the draft's Domino head drafts one token after another, but not at a width of 1"
    if any("LiLiCorr" in name for name in found.get("architectures") or ()):
        return "the draft's LiLiCorr head samples what it proposes, and no width of that has been tried"
    return None


def steps_by_breadth(server_args: Any) -> None:
    """Set SGLang's resolved steps to width / topk; the width has the launch steps.

    Adaptive speculation keeps every algorithm's launch steps in ``speculative_num_steps``. For NGRAM SGLang expects
    width / topk there, and reserves topk times steps KV slots per request.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        steps = cfg.speculative_num_draft_tokens // cfg.speculative_eagle_topk
        declare_resolution(server_args, "sglang_adaptive", speculative_num_steps=steps)


def needs_lengths_on_host(original: Callable[..., bool], attn_backends: Sequence[Any]) -> bool:
    """Whether rounds need lengths on the host; with adaptive NGRAM only if the attention backends do.

    With overlap the scheduler launches a round while the previous one runs. SGLang 0.5.23 waits for the lengths before
    every NGRAM round, because it builds a mask of each request's length on the host. The mask of a zero-step round may
    be too long, so this round waits only if the attention backend needs lengths.
    """
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    if spec.speculative_algorithm != "NGRAM" or not spec.speculative_adaptive:
        return original(attn_backends)
    with spec.override(speculative_algorithm=None):
        return original(attn_backends)
