"""Repairs of defects of SGLang that adaptive speculation meets; patches/ has the same as patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Hybrid models, which keep a recurrent state beside the KV cache: whether their steps may change.
#
# A verify pass writes the state after each draft token to a scratch buffer, and the commit reads that of the last
# accepted token. SGLang 0.5.23 allocates the buffer for the most draft tokens. Its Triton kernel of Mamba2 uses the
# round's draft tokens as the distance between two requests; the commit uses the buffer's width. So with fewer draft
# tokens all requests but the first would continue from a wrong state. GDN and KDA kernels use the buffer's width, and
# ``mamba2_width_of_the_buffer`` makes the Mamba2 kernel do so; reproduced and fixed on an H200.


def hybrid_obstacle(server_args: Any) -> str | None:
    """Return why the steps of a server of this model may not change; None where they may, or nothing is known.

    *server_args* name the model by a path or by a name whose configuration SGLang can load.
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.configs import InklingMMConfig, InklingModelConfig
    from sglang.srt.configs.hybrid_arch import mambaish_config

    try:
        model = model_config_of(server_args)
    except Exception:  # SGLang itself reports what is wrong with the model
        return None
    if isinstance(model.hf_config, (InklingMMConfig, InklingModelConfig)):
        # save_intermediate_conv_windows asserts that a verify is as wide as the buffer.
        return "Inkling's short convolutions keep a verify's states for the widest depth alone"
    given = resolved_view(server_args)
    if given.mamba_backend != "triton" and _runs_mamba2(model):
        return f"--mamba-backend {given.mamba_backend}: no GPU has shown its Mamba2 states right below the widest depth"
    if mambaish_config(model) is not None and given.enable_unified_memory:
        return "--enable-unified-memory keeps a hybrid model's verify states for the width of the launch alone"
    return None


def _runs_mamba2(model: Any) -> bool:
    """Whether SGLang would run Mamba2 layers; short convolutions share their configuration, not their kernels."""
    from sglang.srt.configs import Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig
    from sglang.srt.configs.hybrid_arch import mamba2_config

    found = mamba2_config(model)
    return found is not None and not isinstance(found, (Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig))


def mamba2_width_of_the_buffer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *arguments* of the kernel with ``cache_steps`` as the steps that the buffer has for a request.

    The buffer is [requests, steps, heads, head size, state size]. SGLang passes the draft tokens of the round.
    FlashInfer's kernel takes ``cache_steps`` as these, reads the distance from the tensor, and is left alone.
    """
    buffer = arguments.get("intermediate_states_buffer")
    if buffer is None:
        return dict(arguments)
    return {**arguments, "cache_steps": buffer.stride(0) // buffer.stride(1)}


# Lets a mixed batch see the tokens that its grammars have accepted.
#
# With ``--enable-mixed-chunk`` SGLang 0.5.23 puts running requests into a prefill batch. With overlap that batch is
# launched while the results of the round before it are pending, and its grammar mask is built at once. A verify
# advances the grammars over pending results first, a mixed batch does not: a running request gets a token that its
# grammar allowed a round ago, and SGLang ends it with "Tokens not accepted". It does so at one depth as well.


def mixed_batch_waits(scheduler: Any, batch: Any) -> bool:
    """Whether pending results have to be processed before *batch*: a mixed one with a grammar."""
    return bool(
        batch
        and scheduler.result_queue
        and batch.forward_mode.is_mixed()
        and not batch.spec_algorithm.is_none()
        and any(req.grammar is not None for req in batch.decoding_reqs or ())
    )


# Ends a text where it ends token by token.
#
# A round brings several tokens. SGLang 0.5.23 looks for each stop string in all of them, in the order in which the
# request lists them, then for each regex, and for tokens that end a text last. So of two ends in one round's tokens it
# may take the later one, which a token at a time nobody reaches.


def first_end(original: Callable[..., int | None], req: Any, new_accepted_len: int, **stop: Any) -> int | None:
    """Return the length of *req*'s output where its first end is, after *stop* was found in its latest tokens.

    *original* returns it for *stop* alone. A stop string whose turn it is has ended the request already, and gives way
    to an end before it. A regex has not: None leaves the request to whatever comes first.
    """
    found = original(req, new_accepted_len, **stop)
    if found is None or new_accepted_len < 2 or req.grammar is not None:  # a grammar is of all tokens already
        return found
    written, reason = req.output_ids, req.finished_reason
    length, first = None, None
    try:
        for end in range(len(written) - new_accepted_len + 1, len(written) + 1):
            req.output_ids, req.finished_reason, req.finished_len = written[:end], None, None
            req.update_finish_state(1)
            if req.finished():
                length, first = req.finished_len or end, req.finished_reason
                break
    finally:
        req.output_ids, req.finished_reason, req.finished_len = written, reason, None
    if length is None:
        return found
    if reason is None:
        return found if found == length else None
    req.finished_reason = first
    return length


# Keeps SGLang's log of overrides short, however often the steps change.
#
# Every switch of SGLang 0.5.23 appends an entry, and every /server_info replays all of them; only the last one has an
# effect.


SWITCH = "adaptive_spec.restore"
"""The source that SGLang names in the entry of a switch."""


def keep_latest_switch() -> None:
    """Drop all switches but the latest."""
    from sglang.srt.runtime_context import get_context

    log = get_context()._overrides_log
    earlier = [index for index, (source, _) in enumerate(log) if source == SWITCH][:-1]
    for index in reversed(earlier):
        del log[index]


# Enables SGLang's plan stream on attention backends that lack its last step.
#
# With ``SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1`` SGLang prepares a verify pass on a second CUDA stream, and then calls
# the target's attention backend to correct the plan by the drafts. fa3 and flashinfer do not implement that method,
# and the scheduler ends at its first verify. The plan of a chain needs no correction.


CHAIN_BACKENDS = frozenset(
    {
        "FlashAttentionBackend",
        "FlashInferAttnBackend",
        "FlashInferMLAAttnBackend",
        "TorchRefBackend",  # the CPU engine's: a CPU has no second stream
    }
)
"""Classes of backends whose plan of a chain's verify needs no correction."""


def correct_plan_stream(original: Callable[..., None], backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
    """Correct a plan by SGLang's *original*, the base class's method, where a chain does not make that needless.

    A chain's metadata depends on lengths, the request table and the number of draft tokens. SGLang 0.5.23 plans after
    the draft, so a flashinfer plan has the final mask; drafts and positions are copied again before the replay. Raises
    NotImplementedError for a tree, whose mask decides the metadata.
    """
    if CHAIN_BACKENDS.isdisjoint(cls.__name__ for cls in type(backend).__mro__):
        return original(backend, spec_info, cuda_graph_bs)
    if spec_info.topk > 1:
        raise NotImplementedError(
            f"SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with {type(backend).__name__} verifies chains only, and "
            f"--speculative-eagle-topk {spec_info.topk} makes a tree: use 1, or unset the variable"
        )
    return None


# Sizes for the most steps what SGLang sizes for the launch steps.
#
# SGLang 0.5.23 derives most sizes from the most draft tokens, but some from those at launch, and rounds of more steps
# write more: the scratch buffer of hybrid models, for which it would reserve too little memory; slots of sliding
# windows, which the scheduler then expects and which can be missing; DeepSeek-V4's rings of a request's latest tokens,
# in which further drafts would overwrite tokens that are still attended to; and buffers of MoE exchanges. The rings and
# the exchanges were read, not run: they are on GPUs alone.


def at_the_widest(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what SGLang's *original* returns, a size, where it reads the most steps as those of the launch."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(*args, **kwargs)
    with spec.override(speculative_num_draft_tokens=widest, speculative_num_steps=widest - 1):
        return original(*args, **kwargs)


# Completes the target's attention backend of each runtime state like the one built at start-up.
#
# SGLang 0.5.23 builds the backend of a state with ``ModelRunner._get_attention_backend`` alone. The start-up backend
# also has its resolved names, by which models choose a kernel, and the runner's translator of KV indices. Without
# these a state would use the configured names, and on a pool with virtual ids the wrong indices.


def finished_backend(backend: Any, model_runner: Any) -> Any:
    """Return *backend*, just built for *model_runner*, with its names and the translator."""
    backend.prefill_attention_backend_str = model_runner.prefill_attention_backend_str
    backend.decode_attention_backend_str = model_runner.decode_attention_backend_str
    model_runner.kv_index_translator.bind_and_verify_backends([backend])
    return backend


# Makes zero steps work with ``--speculative-use-rejection-sampling``.
#
# Rejection sampling compares the target's distribution with the one that the drafts were drawn from. At zero steps
# the verify input of SGLang 0.5.23 has no such distribution, and ``eagle_sample`` raises: the first sampled batch at
# zero steps ends the scheduler.


def with_draft_probs(verify_input: Any, worker: Any, batch: Any) -> Any:
    """Return the *verify_input* of a zero-step round, with an empty draft distribution where one is needed.

    Its shape is (requests, 1, vocabulary): zeros, expanded from one element. The sampler's kernel reads one row a
    draft; without drafts it reads none and samples from the target's distribution.
    """
    import torch
    from sglang.srt.runtime_context import get_spec

    if (
        get_spec().speculative_use_rejection_sampling
        and not batch.forward_mode.is_idle()
        and verify_input.draft_probs is None
    ):
        requests, vocabulary = batch.seq_lens.shape[0], worker.target_worker.model_config.vocab_size
        none = torch.zeros((1, 1, 1), dtype=torch.float32, device=worker.device)
        verify_input.draft_probs = none.expand(requests, 1, vocabulary)
    return verify_input
