"""Chooses this package's worker for an algorithm, or the reason why there is none.

SGLang 0.5.23 adapts only the steps of EAGLE and EAGLE3. Each worker here subclasses SGLang's worker for another
algorithm and attaches the controller. It is used only if adaptive speculation is on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

from sglang_adaptive.sglang_plugin.contract import worker_of_platform
from sglang_adaptive.sglang_plugin.setup import AsIf, drafts_blocks, model_config

MULTI_LAYER = ("multi_layer_eagle_worker_v2:MultiLayerEagleWorkerV2", "multi_layer:AdaptiveMultiLayerWorker")
OURS = {
    "DFLASH": ("dflash_worker_v2:DFlashWorkerV2", "dflash:AdaptiveDFlashWorker"),
    "EAGLE": MULTI_LAYER,
    "EAGLE3": MULTI_LAYER,
    "FROZEN_KV_MTP": ("frozen_kv_mtp_worker_v2:FrozenKVMTPWorkerV2", "frozen_kv:AdaptiveFrozenKVWorker"),
    "NGRAM": ("ngram_worker:NGRAMWorker", "ngram:AdaptiveNgramWorker"),
    "STANDALONE": ("standalone_worker_v2:StandaloneWorkerV2", "standalone:AdaptiveStandaloneWorker"),
}
"""By algorithm: SGLang's class in ``sglang.srt.speculative``, and its subclass in this package.

EAGLE's other class, for one-layer drafts, already adapts.
"""
WITHOUT_LOOKUPS = ("DFLASH", "NGRAM")
"""Algorithms that are refused with lookups, for which they would have buffers. The other checks run when the server
starts (``lookups/rounds.py``)."""


def adaptive_class(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Return our subclass of the worker class that SGLang chooses for *algorithm*, if there is one; else SGLang's."""
    from sglang.srt.arg_groups.overrides import resolving_view

    made = original(algorithm, server_args)
    if algorithm.name not in OURS or not resolving_view(server_args).speculative_adaptive:
        return made
    theirs, ours = OURS[algorithm.name]
    is_theirs = f"{made.__module__}:{made.__name__}" == f"sglang.srt.speculative.{theirs}"
    return resolve_name(f"{__package__}.{ours}") if is_theirs else made


def unsupported_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Around SGLang's adaptive_unsupported_reason: accept our algorithms; all other checks are SGLang's."""
    from sglang.srt.arg_groups.overrides import resolved_view, resolving_view
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    name, cfg = resolving_view(server_args).speculative_algorithm, resolved_view(server_args)
    if OURS.get(name) is MULTI_LAYER and cfg.enable_multi_layer_eagle and cfg.attn_dp_size == 1:
        return original(AsIf(server_args, enable_multi_layer_eagle=False))
    if OURS.get(name) in (None, MULTI_LAYER):
        return original(server_args)
    if (platform_worker := worker_of_platform(SpeculativeAlgorithm.from_string(name))) is not None:
        return f"the platform serves {name} with {platform_worker.__name__}, which this package does not know"
    if name == "DFLASH" and (reason := fixed_block_reason(server_args)) is not None:
        return reason
    if name == "NGRAM" and server_args.disaggregation_mode != "null":
        return "NGRAM's accepted tokens are not handed from a prefill server to a decode server"
    if name == "FROZEN_KV_MTP" and resolved_view(server_args).attn_dp_size > 1:
        return "attention DP is not supported with FROZEN_KV_MTP"  # whose launch line says EAGLE or NEXTN
    return original(AsIf(server_args, speculative_algorithm="EAGLE"))


# Changes for DFLASH and NGRAM to SGLang's arguments and scheduler.


def launch_steps(original: Callable[..., None], server_args: Any) -> None:
    """Resolve the steps that an adaptive server starts with; DFLASH starts with its block size."""
    if not drafts_blocks(server_args):
        original(server_args)


def launch_block_is_widest(original: Callable[..., None], server_args: Any) -> None:
    """Resolve DFLASH's arguments, and let SGLang size buffers for the launch block, whatever the configuration lists.

    SGLang would size them for the most steps of the configuration, and rejects a wider block.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    original(server_args)
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


def steps_by_breadth(original: Callable[..., None], server_args: Any) -> None:
    """Resolve NGRAM's arguments, and set SGLang's steps to width / topk; the width has the launch steps.

    Adaptive speculation keeps every algorithm's launch steps in ``speculative_num_steps``. For NGRAM SGLang expects
    width / topk there, and reserves topk times steps KV slots per request.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    original(server_args)
    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        steps = cfg.speculative_num_draft_tokens // cfg.speculative_eagle_topk
        declare_resolution(server_args, "sglang_adaptive", speculative_num_steps=steps)


def needs_lengths_on_host(original: Callable[..., bool], attn_backends: Sequence[Any]) -> bool:
    """Return whether rounds need lengths on the host; with adaptive NGRAM only if the attention backends do.

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
