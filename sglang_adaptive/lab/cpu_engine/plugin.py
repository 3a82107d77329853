"""Entry point that registers the CPU engine's attention backend in every SGLang process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

from sglang_adaptive.serve_cpu import ATTENTION_BACKEND, SWITCH

WAIT_MILLISECONDS = 100


def register() -> None:
    """Add the attention backend to SGLang; does nothing unless the launcher started the CPU engine."""
    if os.environ.get(SWITCH) != "1":
        return
    gc.freeze()  # imported objects stay; skip them in collections while SGLang imports the rest
    gc.enable()  # see stand_in/sitecustomize.py
    from sglang.srt.arg_groups import choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_adaptive.lab.cpu_engine import replaced
    from sglang_adaptive.lab.cpu_engine.kernels.sample import murmur_hash32_cpu, sample_chain_cpu
    from sglang_adaptive.lab.cpu_engine.kernels.slots import last_slots
    from sglang_adaptive.sglang_plugin.hooks import place_at_once

    place_at_once()  # SGLang would scan every module for each hook below, a third of a second in total
    if ATTENTION_BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        for add in (
            choices.add_attention_backend_choices,
            choices.add_draft_attention_backend_choices,
            choices.add_deterministic_attention_backend_choices,
            choices.add_radix_supported_deterministic_attention_backend_choices,
        ):
            add([ATTENTION_BACKEND])
    around = {
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend": _with_torch_ref,
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.handle_server_args": replaced.resolve_as_on_gpu,
        "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs": replaced.in_model_dtype,
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers": replaced.create_buffers,
        "sglang.srt.layers.layernorm.RMSNorm.forward_native": replaced.norm,
        "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native": replaced.rotate,
        "sglang.srt.managers.data_parallel_controller.DataParallelController.event_loop": _waiting_for_requests,
        "sglang.srt.managers.utils.validate_input_length": _requiring_a_token,
        "sglang.srt.disaggregation.utils.get_kv_class": _without_events,
    }
    instead = {
        # With pages of several tokens SGLang would run a Triton kernel here on any device.
        "sglang.srt.mem_cache.allocation.get_last_loc": last_slots,
        # On a CPU SGLang verifies sampled requests greedily, because it has no kernel for them.
        "sglang.srt.speculative.eagle_utils._verify_uses_greedy": _only_greedy_requests,
        "sglang.srt.speculative.dflash_utils.is_dflash_sampling_verify_available": replaced.samples,
        "sglang.srt.models.dflash._radix_topk": replaced.likeliest,
        "sglang.kernels.ops.speculative.dspark.dspark_accept.chain_speculative_sampling_triton": sample_chain_cpu,
        # With --enable-deterministic-inference SGLang would use Triton matrix multiplications here on any device.
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode": _as_it_is,
        "sglang.srt.layers.sampler.murmur_hash32": murmur_hash32_cpu,
    }
    for hooks, kind in ((around, HookType.AROUND), (instead, HookType.REPLACE)):
        for target, hook in hooks.items():
            HookRegistry.register(target, hook, kind)
    replaced.without_streams()
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(ATTENTION_BACKEND)(_torch_ref)


class _Waiting:
    """A ZeroMQ socket that blocks briefly for a message where its caller polls."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        """Return the socket's ``recv`` or ``recv_pyobj``, whichever the release of SGLang calls."""
        self._socket.poll(WAIT_MILLISECONDS)
        return getattr(self._socket, name)


def _waiting_for_requests(original: Callable[..., Any], controller: Any) -> Any:
    """SGLang's data-parallel controller polls for requests without a pause, which takes a core from its replicas."""
    controller.recv_from_tokenizer = _Waiting(controller.recv_from_tokenizer)
    return original(controller)


def _requiring_a_token(original: Callable[..., str | None], req: Any, *args: Any, **kwargs: Any) -> str | None:
    """Return why SGLang rejects the length of a prompt; one without tokens, which it rejects only as ids, ends it."""
    return original(req, *args, **kwargs) if len(req.origin_input_ids) else "The input has no tokens."


def _without_events(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    """Return SGLang's class for moving keys and values; a sender gets slots at once, not with a CUDA event."""
    found = original(transfer_backend, class_type)
    if getattr(found, "supports_host_tensor_indices", False):
        found.supports_host_tensor_indices = False
    return found


def _only_greedy_requests(*, is_all_greedy: bool, **_: Any) -> bool:
    import sgl_kernel
    from sglang.srt.speculative import eagle_utils

    from sglang_adaptive.lab.cpu_engine.kernels import sample

    # SGLang 0.5.22 imports the kernels from sgl_kernel when it samples.
    home = eagle_utils if hasattr(eagle_utils, "tree_speculative_sampling_target_only") else sgl_kernel
    if getattr(home, "tree_speculative_sampling_target_only", None) is None:
        home.tree_speculative_sampling_target_only = sample.sample_tree_cpu
        home.top_k_renorm_prob = sample.keep_top_k_cpu
        home.top_p_renorm_prob = sample.keep_top_p_cpu
    return is_all_greedy


def _as_it_is(runner: Any) -> None:
    """Leave float32 sums alone: they depend on the batch by about 1e-6, and none of 400 seeds drew differently."""


def _torch_ref(runner: Any) -> Any:
    from sglang_adaptive.lab.cpu_engine.attention_backend import TorchRefBackend

    return TorchRefBackend(runner)


def _with_torch_ref(
    original: Callable[..., Any],
    factory: Any,
    backend_name: str,
    backend_map: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Add the draft's backends to SGLang's own."""
    from sglang_adaptive.lab.cpu_engine.attention_backend import TorchRefDraftBackend

    def create() -> tuple[str, Any]:
        runner = factory.draft_model_runner
        if backend_name == "decode_attention_backend":
            return ATTENTION_BACKEND, TorchRefDraftBackend(runner, factory.topk, factory.speculative_num_steps)
        return ATTENTION_BACKEND, _torch_ref(runner)

    return original(factory, backend_name, {**backend_map, ATTENTION_BACKEND: create}, *args, **kwargs)
