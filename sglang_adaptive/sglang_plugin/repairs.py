"""Fixes for SGLang defects that affect adaptive speculation; patches/ has the same fixes as patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang_adaptive.sglang_plugin.stage import Rest, Stage

# Whether steps may change for hybrid models, which keep a recurrent state next to the KV cache.
#
# A verify pass writes the state after each draft token to a buffer for the most draft tokens, and the commit reads that
# of the last accepted token. SGLang 0.5.23's Triton kernel for Mamba2 uses the round's draft tokens as the stride
# between requests, but the commit uses the buffer's width. So with fewer draft tokens, all requests but the first would
# continue from a wrong state. GDN and KDA kernels use the buffer's width, as Mamba2's does here; reproduced and fixed
# on an H200.


def hybrid_obstacle(server_args: Any) -> str | None:
    """Return why the steps of a server of this model may not change; None if they may, or if nothing is known.

    *server_args* name the model by path, or by a name whose configuration SGLang can load.
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
        return "Inkling's short convolutions keep a verify's states only for the widest depth"
    given = resolved_view(server_args)
    if given.mamba_backend != "triton" and _runs_mamba2(model):
        return f"--mamba-backend {given.mamba_backend}: its Mamba2 states are untested on a GPU below the widest depth"
    if mambaish_config(model) is not None and given.enable_unified_memory:
        return "--enable-unified-memory keeps a hybrid model's verify states only for the launch width"
    return None


def _runs_mamba2(model: Any) -> bool:
    """Whether SGLang would run Mamba2 layers; short convolutions share their configuration, not their kernels."""
    from sglang.srt.configs import Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig
    from sglang.srt.configs.hybrid_arch import mamba2_config

    found = mamba2_config(model)
    return found is not None and not isinstance(found, (Lfm2Config, Lfm2MoeConfig, Lfm2VlConfig, ZayaConfig))


def run_mamba2(original: Callable[..., None], backend: Any, *args: Any, **kwargs: Any) -> None:
    """Run SGLang's Triton kernel for Mamba2, which writes the state after each draft token."""
    original(backend, *args, **mamba2_width_of_the_buffer(kwargs))


def mamba2_width_of_the_buffer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kernel's *arguments* with ``cache_steps`` set to the buffer's steps per request.

    The buffer is [requests, steps, heads, head size, state size]. SGLang passes the round's draft tokens. FlashInfer's
    kernel reads ``cache_steps`` as draft tokens and takes the stride from the tensor, so it is left unchanged.
    """
    buffer = arguments.get("intermediate_states_buffer")
    if buffer is None:
        return dict(arguments)
    return {**arguments, "cache_steps": buffer.stride(0) // buffer.stride(1)}


# Keeps SGLang's log of overrides short, however often the steps change.
#
# Every switch of SGLang 0.5.23 appends an entry, and every /server_info replays them all. Only the last one matters.


SWITCH = "adaptive_spec.restore"
"""SGLang's name for the source of a switch entry."""


def keep_latest_switch() -> None:
    """Drop all switches but the latest."""
    from sglang.srt.runtime_context import get_context

    log = get_context()._overrides_log
    earlier = [index for index, (source, _) in enumerate(log) if source == SWITCH][:-1]
    for index in reversed(earlier):
        del log[index]


# Enables SGLang's plan stream on attention backends that lack its last step.
#
# With ``SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1`` SGLang prepares a verify pass on a second CUDA stream, then calls the
# target's attention backend to correct the plan for the drafts. fa3 and flashinfer do not implement that method, so the
# scheduler ends at its first verify.


CHAIN_BACKENDS = frozenset(
    ("FlashAttentionBackend", "FlashInferAttnBackend", "FlashInferMLAAttnBackend", "TorchRefBackend")
)
"""Backend classes whose plan for verifying a chain needs no correction; the last is the CPU engine's."""


def correct_plan_stream(original: Callable[..., None], backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
    """Correct what SGLang's plan stream prepared for a verify pass, unless the backend's chains need no correction.

    A chain's metadata depends on lengths, the request table and the number of draft tokens, and drafts and positions
    are copied again before the replay. Raises NotImplementedError for a tree, whose metadata depends on its mask.
    """
    if CHAIN_BACKENDS.isdisjoint(cls.__name__ for cls in type(backend).__mro__):
        return original(backend, spec_info, cuda_graph_bs)
    if spec_info.topk > 1:
        raise NotImplementedError(
            f"SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with {type(backend).__name__} verifies chains only, and "
            f"--speculative-eagle-topk {spec_info.topk} makes a tree: use 1, or unset the variable"
        )
    return None


# Sizes buffers for the most steps where SGLang 0.5.23 sizes them for the launch steps.
#
# These are the scratch buffer of hybrid models, for which SGLang would reserve too little memory; sliding-window slots,
# which the scheduler expects and which can be missing; DeepSeek-V4's rings of a request's latest tokens, where more
# drafts would overwrite tokens that are still attended to; and MoE exchange buffers. The rings and MoE buffers exist
# only on GPUs; they were checked by reading, not by running.


def at_the_widest(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the size that SGLang's *original* computes when it sees the most steps as the launch steps."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(*args, **kwargs)
    chain = spec.speculative_eagle_topk == 1
    steps = widest - 1 if chain else widest // spec.speculative_eagle_topk
    with spec.override(speculative_num_draft_tokens=widest, speculative_num_steps=steps):
        return original(*args, **kwargs)


def most_steps(model: Mapping[str, Any]) -> int | None:
    """Return the most steps whose drafts fit into the rings of DeepSeek-V4; None if *model*'s configuration has none.

    SGLang 0.5.23 asserts it once the weights are loaded, for the most draft tokens of all rounds.
    """
    ratios = {4, 128} & set(model.get("compress_ratios") or ())
    if not ratios or not any("DeepseekV4" in name for name in model.get("architectures") or ()):
        return None
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pool

    if envs.SGLANG_OPT_USE_ONLINE_COMPRESS.get():
        ratios -= {128}  # it has no ring then
    served = [pool.get_compress_state_write_pad(one, pool.get_compress_state_ring_size(one, 1)) for one in ratios]
    return min(served) - 1 if served else None


# Completes each runtime state's target attention backend like the one built at start-up.
#
# SGLang 0.5.23 builds a state's backend with only ``ModelRunner._get_attention_backend``. Without the rest, models
# would choose kernels by the configured names, not the resolved ones, and virtual ids would give wrong indices.


def finished_backend(original: Callable[..., Any], model_runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Build an attention backend that is as complete as the one built at start-up."""
    backend = original(model_runner, *args, **kwargs)
    backend.prefill_attention_backend_str = model_runner.prefill_attention_backend_str
    backend.decode_attention_backend_str = model_runner.decode_attention_backend_str
    model_runner.kv_index_translator.bind_and_verify_backends([backend])
    return backend


class Repairs(Stage):
    """The fixes that act in rounds of adaptive speculation."""

    def switch(self, rest: Rest, worker: Any, state: Any) -> None:
        rest(worker, state)
        keep_latest_switch()

    def is_overlap_off(self, rest: Rest, scheduler: Any, batch: Any, last_batch: Any) -> bool:
        """Return whether pending results are processed before *batch*, as before a mixed one with a grammar.

        With ``--enable-mixed-chunk`` SGLang 0.5.23 puts running requests into a prefill batch. With overlap, it builds
        that batch's grammar mask while the previous round's results are pending; a verify pass first advances the
        grammars over them. So a running request gets a token that its grammar allowed one round earlier, and SGLang
        ends it with "Tokens not accepted". This also happens with fixed steps.
        """
        return rest(scheduler, batch, last_batch) or bool(
            batch
            and scheduler.result_queue
            and batch.forward_mode.is_mixed()
            and not batch.spec_algorithm.is_none()
            and any(req.grammar is not None for req in batch.decoding_reqs or ())
        )

    def end_of_text(self, rest: Rest, req: Any, new_accepted_len: int, **stop: Any) -> int | None:
        """Return the output length of *req* at its first end, after *stop* was found in its latest tokens.

        SGLang 0.5.23 searches all tokens of a round for each stop string, in the request's order, then for each regex,
        and last for stop tokens. So if they contain two ends, it may take the later one. If *stop* is a string, the
        request is already marked as finished, and an earlier end replaces it. If it is a regex, the request is not, and
        None leaves it to the end that comes first.
        """
        found: int | None = rest(req, new_accepted_len, **stop)
        if found is None or new_accepted_len < 2 or req.grammar is not None:  # a grammar has consumed all tokens
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

    def zero_step_input(self, rest: Rest, worker: Any, batch: Any) -> Any:
        """Prepare a zero-step round, with the draft distribution that ``--speculative-use-rejection-sampling`` reads.

        SGLang 0.5.23 makes none, so ``eagle_sample`` raises, and the first sampled batch at zero steps ends the
        scheduler. It is (requests, 1, vocabulary): zeros, expanded from one element. The sampler's kernel reads one
        row per draft; without drafts it reads none and samples from the target's distribution.
        """
        from sglang.srt.runtime_context import get_spec

        made = rest(worker, batch)
        samples = get_spec().speculative_use_rejection_sampling and not batch.forward_mode.is_idle()
        if samples and made.draft_probs is None:
            import torch

            requests, vocabulary = batch.seq_lens.shape[0], worker.target_worker.model_config.vocab_size
            none = torch.zeros((1, 1, 1), dtype=torch.float32, device=worker.device)
            made.draft_probs = none.expand(requests, 1, vocabulary)
        return made

    def sample(self, rest: Rest, verify_input: Any, batch: Any, logits_output: Any, *more: Any, **options: Any) -> Any:
        """Accept drafts, and keep the hidden states of the accepted path.

        SGLang 0.5.23 returns a request's first rows, which in a tree are others.
        """
        found = rest(verify_input, batch, logits_output, *more, **options)
        if verify_input.tree_topk != 1 and batch.return_hidden_states and logits_output.hidden_states is not None:
            logits_output.hidden_states = logits_output.hidden_states[found[2].clamp(min=0).flatten().long()]
        return found
