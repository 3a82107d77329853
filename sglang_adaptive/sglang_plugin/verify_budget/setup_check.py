"""Checks whether a verify budget is requested, and whether the setup allows one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.workers.choice import is_eagle

FORCE = env.VERIFY_BUDGET.name

CHOSEN = "policy"
"""The policy chooses each round's budget. The launcher sets this for its schedulers if the configuration says so."""

_FA3 = "FlashAttentionBackend"

PACKED_BACKENDS = frozenset({"TorchRefBackend", _FA3})  # the CPU engine's, and fa3
"""Attention backend classes that verify packed tokens like a rectangle."""


def why_rectangles(worker: Any) -> Iterator[str]:
    """Yield why all requests of a batch have to verify equally many drafts; nothing if they do not."""
    asked = env.VERIFY_BUDGET.get() or ""
    if asked != CHOSEN and (not asked.isdecimal() or int(asked) < 1):
        yield f"{FORCE}={asked!r} is not a whole number of at least 1"
    runner = worker.target_worker.model_runner
    if not is_eagle(worker):
        yield f"{type(worker).__name__} packs no drafts"
    yield from _of_the_target(runner)
    yield from _of_the_server()
    if needs_graphs(runner):
        yield from _of_the_graphs(worker)


def ask(config: AdaptiveConfig) -> None:
    """Let schedulers started by this process choose budgets if *config* says so."""
    if config.options.verify_budget:
        env.VERIFY_BUDGET.set(env.VERIFY_BUDGET.get() or CHOSEN)
    elif env.VERIFY_BUDGET.get() == CHOSEN:  # set by an earlier server of this process
        env.VERIFY_BUDGET.set(None)


def asked() -> bool:
    """Return whether this process was asked for budgets."""
    return env.VERIFY_BUDGET.get() is not None


def require_asked(config: AdaptiveConfig) -> None:
    """Raise ConfigError if *config* wants budgets but the server's start did not ask for them."""
    if config.options.verify_budget and not asked():
        place = f"{config.policy}.verify_budget"
        raise ConfigError(config.source, place, "was not asked for when the server started", "false")


def forced_budget() -> int | None:
    """Return the forced mean number of drafts to verify; None where the policy chooses."""
    asked = env.VERIFY_BUDGET.get() or ""
    return int(asked) if asked.isdecimal() else None


def needs_graphs(runner: Any) -> bool:
    """Return whether packed passes of *runner*, the target's, run only in CUDA graphs."""
    return type(runner.attn_backend).__name__ == _FA3


def state_of(worker: Any, steps: int) -> Any | None:
    """Return the runtime state of *steps*; None where there is none."""
    return next((state for state in worker.adaptive_controller.states if state.speculative_num_steps == steps), None)


def longest_row(steps: int) -> int | None:
    """Return the most tokens per request that graphs of *steps* have to take; None where that is steps + 1."""
    forced = forced_budget()
    if not steps or steps != (steps if forced is None else forced):
        return None
    widest = max(configuration().candidate_steps) + 1
    return widest if widest > steps + 1 else None


def _of_the_target(runner: Any) -> Iterator[str]:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    backend = type(runner.attn_backend).__name__
    if backend not in PACKED_BACKENDS:
        yield f"{backend} has not been shown to verify packed drafts"
    if needs_graphs(runner):
        yield from _of_fa3(runner.attn_backend)
    elif runner.decode_cuda_graph_runner is not None:
        yield "graphs of a verify pass are captured for rectangles"
    if type(runner.req_to_token_pool) is not ReqToTokenPool:
        yield f"a {type(runner.req_to_token_pool).__name__} keeps a state for each token of a rectangle"
    if runner.model_config.model_is_mrope:
        yield "multimodal positions are made for rectangles"
    if runner.watermark_state is not None:
        yield "watermarks read the tokens of a rectangle"


def _of_fa3(backend: Any) -> Iterator[str]:
    if backend.fa_impl_ver != 3:
        yield "only version 3 of FlashAttention has been shown to verify packed drafts"
    if backend.use_mla:
        yield "latent attention verifies rectangles"
    if backend.has_swa or backend.use_sliding_window_kv_pool:
        yield "sliding windows verify rectangles"
    if backend.local_attn_builder is not None:
        yield "local attention verifies rectangles"
    if backend.is_encoder_decoder:
        yield "an encoder's keys are read by rectangles"
    if backend.attn_cp_size > 1 or backend._kv_shard_pool is not None:
        yield "keys that are spread over ranks are read by rectangles"
    if backend.kv_index_translator.is_translating:
        yield "unified memory translates the slots of rectangles"


def _of_the_server() -> Iterator[str]:
    from sglang.srt.runtime_context import get_parallel, get_spec

    parallel = get_parallel()
    if get_spec().speculative_use_rejection_sampling:
        yield "rejection sampling reads every draft of a chain"
    if accepts_unseen():
        yield "SGLANG_SIMULATE_ACC_LEN accepts drafts unseen"
    if parallel.tp_size > 1 or parallel.attn_dp_size > 1:
        yield "several ranks have not been shown to rank drafts alike"


def accepts_unseen() -> bool:
    """Return whether SGLang accepts unverified drafts; a benchmark that replays acceptance replaces this."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_SIMULATE_ACC_LEN.get() > 0)


def _of_the_graphs(worker: Any) -> Iterator[str]:
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

    forced = forced_budget()
    found = [state_of(worker, forced)] if forced else worker.adaptive_controller.states
    captured = [state.target_graph_runner for state in found if state is not None and state.target_graph_runner]
    if forced and found == [None]:
        yield f"there are no graphs of {forced} steps, in which packed drafts are verified"
    if not captured or any(type(graphs) is not DecodeCudaGraphRunner for graphs in captured):
        yield "without CUDA graphs a packed verify waits for the device"
    if any(graphs._metadata_glue is not None for graphs in captured):
        yield "SGLANG_ENABLE_METADATA_GLUE_GRAPH replays the metadata of rectangles"
