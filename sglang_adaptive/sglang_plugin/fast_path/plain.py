"""Finds the passes of a model that need only a graph, its inputs and its replay, and says why others need more.

The answers never change while a server runs, so they are looked up once. SGLang handles unknown setups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

Plan = TypeVar("Plan")

_WATCHERS = ("watermark_state", "eplb_manager", "device_timer", "msprobe_debugger")
"""Optional parts of SGLang's ModelRunner that act around each pass."""


class Plans(Generic[Plan]):
    """What graphs need for each number of requests, looked up once.

    A plan must not hold its graph's runner, which has a shorter life.
    """

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[Any, dict[int, Plan] | None] = WeakKeyDictionary()
        """By runner or attention backend, and number of requests; None for one that SGLang prepares."""

    def may(self, owner: Any, what: str, why_not: Callable[[], Iterator[str]]) -> bool:
        """Whether *owner* does not need SGLang to prepare *what*; if it does, the first call logs why."""
        if owner not in self._found:
            reason = next(why_not(), None)
            self._found[owner] = {} if reason is None else None
            if reason is not None:
                logger.info("adaptive: %s are prepared by SGLang: %s", what, reason)
        return self._found[owner] is not None

    def of(
        self, runner: Any, requests: int, what: str, why_not: Callable[[], Iterator[str]],
        made: Callable[[Any, int], Plan],
    ) -> Plan | None:  # fmt: skip
        """Return *runner*'s plan for *requests*, *made* on first use; None where SGLang has to prepare the pass."""
        if not runner or not self.may(runner, what, why_not) or requests > runner.max_bs:
            return None
        plans = self._found[runner]
        assert plans is not None
        if requests not in plans:
            plans[requests] = made(runner, requests)
        return plans[requests]


def of_the_server() -> Iterator[str]:
    """Yield what ranks share before a pass, and what observes passes."""
    from sglang.srt.environ import envs
    from sglang.srt.eplb.expert_distribution import get_global_expert_distribution_recorder
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend
    from sglang.srt.runtime_context import get_exec, get_parallel

    parallel, features = get_parallel(), get_exec().features
    if parallel.attn_dp_enabled or parallel.dcp_enabled:
        yield "attention data or decode context parallelism"
    if not get_moe_a2a_backend().is_none():
        yield "experts are reached by an all-to-all"
    if "Noop" not in type(get_global_expert_distribution_recorder()).__name__:
        yield "the distribution of experts is recorded"
    if features.enable_return_routed_experts or features.enable_return_indexer_topk:
        yield "requests may ask for routed experts or an indexer's choices, which SGLang collects after each pass"
    watched = (envs.SGLANG_LOG_DECODE_GRAPH_KEY, envs.SGLANG_ENABLE_ASYNC_ASSERT, envs.SGLANG_ENABLE_NAN_LOGITS_CHECK)
    if any(variable.get() for variable in watched):
        yield "SGLang's debugging looks at each pass"


def of_a_model(runner: Any) -> Iterator[str]:
    """Yield what SGLang does around the passes of *runner*, a ModelRunner."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    for name in _WATCHERS:
        if getattr(runner, name, None) is not None:
            yield f"the model has a {name}"
    if runner.model_config.is_multimodal or runner.model_config.model_is_mrope:
        yield "the model is multimodal"
    if mambaish_config(runner.model_config) is not None:
        yield "the model keeps states besides its KV"
    if (
        runner.enable_elastic_ep
        or runner.ngram_embedding_manager.enabled
        or hasattr(runner.model, "prepare_for_forward")
    ):
        yield "the model is prepared before each pass"


def of_attention(backend: Any) -> Iterator[str]:
    """Yield what *backend* needs beyond lengths and page tables as fa3 reads them from one pool."""
    from sglang.srt.mem_cache.kv_loc_plan import IdSpaceKind

    if type(backend).__name__ != "FlashAttentionBackend":
        yield f"{type(backend).__name__} plans its passes"
    translator = backend.kv_index_translator
    if backend.needs_cpu_seq_lens:
        yield "attention is planned by lengths on the host"
    if backend.use_sliding_window_kv_pool or backend.local_attn_builder is not None:
        yield "attention uses a window"
    if translator.reads_are_translated or translator.space(IdSpaceKind.FULL).write is not None:
        yield "the KV pool is virtual"
    if backend.is_encoder_decoder or backend.topk > 1:
        yield "attention covers more than a chain"


def of_a_graph(runner: Any) -> Iterator[str]:
    """Yield what a replay of *runner*, a graph runner, needs beyond its inputs."""
    if type(runner.backend).__name__ != "FullCudaGraphBackend":
        yield f"{type(runner.backend).__name__} replays graphs"
    if runner.require_mlp_sync or runner.disable_padding:
        yield "a graph is chosen by more than the number of requests"
    if (
        runner.attention_graph_variants is not None
        or runner.is_dllm
        or getattr(runner, "_metadata_glue", None) is not None
    ):
        yield "graphs come in variants"
