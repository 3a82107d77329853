"""Checks zero-step rounds on SGLang's Triton and FlashInfer backends, with their decode and prefill kernels.

FlashInfer's kernels need a device: here SGLang plans them, and a stub takes the plan's arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel

HEADS, KV_HEADS, DIM, CONTEXT, ROWS = 8, 2, 64, 128, 4
LENGTHS = {2: 5, 0: 70, 3: 33}
"""By row of the request pool: the number of tokens before the one to verify."""

MAKERS = ("init_forward_metadata", "init_forward_metadata_out_graph")


def it_writes_what_the_prefill_kernel_writes() -> None:
    for captured in (False, True):
        ours, sglangs = triton_backend(), triton_backend()
        mine = written(ours, a_batch(), captured, Rounds(None, None))
        theirs = written(sglangs, a_batch(), captured, None)
        kinds = [backend.forward_metadata.qo_indptr is None for backend in (ours, sglangs)]
        assert kinds == [True, False], "the metadata is not of the kind that was expected"
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-6)


def other_passes_are_left_to_sglang() -> None:
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput

    of_both = {"enable_deterministic": True, "kv_index_translator": SimpleNamespace(is_translating=True)}
    of_triton = {"sliding_window_size": 512, "is_draft_runner": True, "use_mla": True, "dcp_size": 2}
    workspaces = dict.fromkeys(("prefill_uses_dequant_workspace", "decode_uses_dequant_workspace"), True)
    of_flashinfer = {"dispatch_reason": "a sliding window", "skip_prefill": True, **workspaces}
    for made, others in ((triton_backend, of_both | of_triton), (_flashinfer, of_both | of_flashinfer)):
        for name, value in others.items():
            backend = made()
            setattr(backend, name, value)
            assert not _decodes(backend, a_batch()), name
        wider, drafting, block, subclass = a_batch(), a_batch(), a_batch(), made()
        block.spec_info = object.__new__(DFlashVerifyInput)
        block.spec_info.draft_token_num = 1
        wider.spec_info.draft_token_num = 2
        drafting.forward_mode = type(drafting.forward_mode).DECODE
        subclass.__class__ = type("OfAnotherKernel", (type(subclass),), {})
        assert not _decodes(made(), wider) and not _decodes(made(), drafting) and not _decodes(subclass, a_batch())
        assert not _decodes(made(), block)  # its lengths on the host are upper bounds
        assert _decodes(made(), a_batch())


def flashinfer_plans_and_runs_a_plain_decode() -> None:
    backend, batch, now = _flashinfer(), a_batch(), Rounds(None, None)
    ends = [0, *itertools.accumulate(length + 1 for length in LENGTHS.values())]
    slots = torch.cat([slots_of_rows()[row, : length + 1] for row, length in LENGTHS.items()])
    for in_capture in (True, False):
        make = type(backend).init_forward_metadata_out_graph
        given = batch if in_capture else _replayed(batch)
        now.around(Stage.triton_metadata, make)(backend, given, in_capture=in_capture)
        planned = backend.planned.pop()
        assert planned["ends"] == ends and not backend.planned
        assert planned["ends on the host"] == (None if in_capture else ends)
        torch.testing.assert_close(planned["slots"][: ends[-1]], slots.int())
    q, k, v = drawn_inputs()
    written = now.around(Stage.forward_extend, type(backend).forward_extend)(backend, q, k, v, a_layer(), batch)
    torch.testing.assert_close(written, q)  # the stub for the decode kernel returns the queries
    torch.testing.assert_close(backend.token_to_kv_pool.keys[batch.out_cache_loc].flatten(1), k.flatten(1))


def the_batch_is_left_as_it_was() -> None:
    batch = a_batch()
    seen: list[Any] = []
    Rounds(None, None).around(Stage.triton_metadata, lambda _, given: seen.append(given))(triton_backend(), batch)
    assert seen[0].seq_lens.tolist() == [n + 1 for n in LENGTHS.values()] and seen[0].spec_info is None
    for lengths in (batch.seq_lens, batch.seq_lens_cpu):
        assert lengths.tolist() == list(LENGTHS.values())
    assert batch.spec_info is not None
    assert batch.forward_mode.is_target_verify() and seen[0].forward_mode.is_decode()


def a_backend_keeps_its_kernel() -> None:
    """A graph captured with one kernel is never replayed with the other kernel's metadata, even after a fault.

    From a fault on, which raises nothing, SGLang's kernel runs on every other backend.
    """
    backend, now = triton_backend(), Rounds(None, None)
    seen = [_decodes(backend, a_batch(), now)]
    broken = object.__new__(type(backend))  # has none of a backend's attributes
    assert not _decodes(broken, a_batch(), now) and now.of(DecodeKernel)[0].guard.closed
    seen += [_decodes(backend, a_batch(), now), _decodes(triton_backend(), a_batch(), now)]
    assert seen == [True, True, False], seen


def _decodes(backend: Any, batch: Any, now: Any = None) -> bool:
    """Return whether the pass over *batch* gets the metadata of a plain decode."""
    seen: list[Any] = []
    (now or Rounds(None, None)).around(Stage.triton_metadata, lambda _, given: seen.append(given))(backend, batch)
    assert seen[0].forward_mode.is_decode() or seen == [batch]
    return seen[0] is not batch


def written(backend: Any, batch: Any, captured: bool, now: Any) -> torch.Tensor:
    """Return what the attention of a pass writes, (tokens, heads * dim); *now* has the stages, or is None."""
    width = batch.spec_info.draft_token_num
    make: Callable[..., Any] = getattr(type(backend), MAKERS[captured])
    forward = type(backend).forward_extend
    if captured:
        backend.init_cuda_graph_state(ROWS, ROWS * width)
    if now is not None:
        make, forward = now.around(Stage.triton_metadata, make), now.around(Stage.forward_extend, forward)
    make(backend, batch, **({"in_capture": True} if captured else {}))
    found: torch.Tensor = forward(backend, *drawn_inputs(width), a_layer(), batch)
    return found.view(len(LENGTHS) * width, HEADS * DIM)


class _Pool:
    """Keys and values of one layer."""

    def __init__(self) -> None:
        self.keys, self.values = (_drawn(side, ROWS * CONTEXT, KV_HEADS, DIM) for side in (1, 2))

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values

    def set_kv_buffer(self, layer: Any, where: Any, k: torch.Tensor, v: torch.Tensor, *scales: None) -> None:
        self.keys[where.loc], self.values[where.loc] = k, v


class _Translator:
    """Reads a request's slots from its row, like SGLang without unified memory."""

    is_translating = False

    def pack_read_stream(
        self, plan: Any, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, out: Any, **more: Any
    ) -> bool:
        for row, length, begin in zip(req_pool_indices, seq_lens, indptr[:-1], strict=True):
            out[begin : begin + length] = slots_of_rows()[row, :length]
        return True


def triton_backend(width: int = 1) -> Any:
    """Return SGLang's backend with only what these passes read; its constructor needs a device."""
    from sglang.kernels.ops.attention.decode_attention import (
        decode_attention_fwd,
        lean_capture_policy,
        lean_decode_seqlen_gate,
    )
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    backend = object.__new__(TritonAttnBackend)
    none = ("sliding_window_size", "window_kv_indptr", "swa_v_head_dim", "split_tile_size", "enable_lean_attention")
    false = (
        *("enable_deterministic", "is_draft_runner", "skip_prefill", "allow_bidirectional_attention_in_extend"),
        *("use_sliding_window_kv_pool", "use_mla", "use_verify_shared_kv", "use_verify_splitkv", "use_pdl"),
        "use_dense_fp8_chunked_prefill",
    )
    backend.__dict__.update(
        **dict.fromkeys(none), **dict.fromkeys(false, False),
        dcp_size=1, page_size=1, num_draft_tokens=width, target_verify_num_tokens_per_req=width, static_kv_splits=True,
        device="cpu", device_core_count=0, max_context_len=CONTEXT, max_kv_splits=8, v_head_dim=DIM,
        num_head=HEADS, num_kv_head=KV_HEADS, lean_total_programs=1, lean_block_m=16,
        kv_indptr=torch.zeros(ROWS + 1, dtype=torch.int32),
        qo_indptr=torch.zeros(ROWS + 1, dtype=torch.int64), mask_indptr=torch.zeros(ROWS + 1, dtype=torch.int64),
        kv_index_translator=_Translator(), token_to_kv_pool=_Pool(), req_to_token_pool=SimpleNamespace(size=ROWS),
        extend_attention_fwd=extend_attention_fwd, decode_attention_fwd=decode_attention_fwd,
        _lean_capture_policy=lean_capture_policy, _lean_decode_seqlen_gate=lean_decode_seqlen_gate,
    )  # fmt: skip
    return backend


def _flashinfer() -> Any:
    """Return SGLang's FlashInfer backend with a kernel that returns the queries; ``planned`` has the plan's inputs."""
    from sglang.srt.layers.attention import flashinfer_backend

    def plan(ends: Any, slots: Any, *_: Any, global_override_indptr_cpu: Any = None, **more: Any) -> None:
        on_host = None if global_override_indptr_cpu is None else global_override_indptr_cpu.tolist()
        backend.planned.append({"ends": ends.tolist(), "slots": slots.clone(), "ends on the host": on_host})

    wrapper = SimpleNamespace(
        is_cuda_graph_enabled=True, begin_forward=plan, forward=lambda q, kv, **more: q,
        _paged_kv_indices_buf=torch.zeros(ROWS * CONTEXT, dtype=torch.int32),
    )  # fmt: skip
    # Without FlashInfer's CUDA code the module lacks the function that plans a replay.
    flashinfer_backend.fast_decode_plan = lambda of, *given, **more: plan(*given, **more)
    false = (
        *("skip_prefill", "prefill_uses_dequant_workspace", "decode_uses_dequant_workspace", "enable_deterministic"),
        *("use_sliding_window_kv_pool", "is_nvfp4_kvcache", "disable_cuda_graph_kv_split"),
    )
    backend = object.__new__(flashinfer_backend.FlashInferAttnBackend)
    updater = object.__new__(flashinfer_backend.FlashInferIndicesUpdaterDecode)
    lengths = {"kv_last_page_len": torch.ones(ROWS), "kv_indptr": [torch.zeros(ROWS + 1, dtype=torch.int32)]}
    updater.__dict__.update(
        **lengths, num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, data_type=torch.float32,
        q_data_type=torch.float32, attn_backend=backend, update=updater.update_single_wrapper,
    )  # fmt: skip
    backend.__dict__.update(
        **dict.fromkeys(false, False), **lengths, dispatch_reason=None, num_wrappers=1, prefill_backend="fa2",
        kv_index_translator=_Translator(), token_to_kv_pool=_Pool(), planned=[], indices_updater_decode=updater,
        kv_cache_quant_method=SimpleNamespace(needs_global_scale=lambda: False), decode_cuda_graph_metadata={},
        _create_decode_wrappers=lambda requests, tokens: [wrapper],
    )  # fmt: skip
    return backend


def a_batch(width: int = 1) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    lengths = torch.tensor(list(LENGTHS.values()))
    return SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY, batch_size=len(LENGTHS), spec_algorithm=SpeculativeAlgorithm.EAGLE,
        seq_lens=lengths, seq_lens_cpu=lengths.clone(), seq_lens_sum=int(lengths.sum()),
        req_pool_indices=torch.tensor(list(LENGTHS)), positions=lengths, kv_loc_plan=None, encoder_lens=None,
        spec_info=SimpleNamespace(num_tokens_per_req=width, kv_indptr=None, custom_mask=None, draft_token_num=width),
        out_cache_loc=torch.cat([slots_of_rows()[row, length : length + width] for row, length in LENGTHS.items()]),
        out_cache_loc_is_physical=True, mha_one_shot=False, attn_attend_prefix_cache=None, extend_seq_lens_cpu=None,
    )  # fmt: skip


def _replayed(batch: Any) -> Any:
    """Return *batch* as SGLang passes it to a backend for a graph replay, which omits some fields."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import build_replay_fb_view

    names = ("forward_mode", "batch_size", "req_pool_indices", "seq_lens", "out_cache_loc", "seq_lens_sum")
    more = {name: getattr(batch, name) for name in (*names, "seq_lens_cpu", "spec_info", "positions")}
    buffers = SimpleNamespace(**vars(batch), input_ids=batch.positions, mamba_track_indices=None)
    return build_replay_fb_view(
        ForwardBatch(input_ids=batch.positions, **more), buffers, bs=batch.batch_size, raw_bs=batch.batch_size,
        num_tokens=batch.batch_size, global_num_tokens_cpu=None, seq_len_fill_value=1,
        capture_forward_mode=batch.forward_mode, is_encoder_decoder=False,
    )  # fmt: skip


def a_layer() -> Any:
    from sglang.srt.layers.radix_attention import AttentionType

    return SimpleNamespace(
        tp_q_head_num=HEADS, tp_k_head_num=KV_HEADS, qk_head_dim=DIM, head_dim=DIM, v_head_dim=DIM, scaling=DIM**-0.5,
        k_scale=None, v_scale=None, k_scale_float=None, v_scale_float=None, layer_id=0,
        logit_cap=0.0, logit_capping_method="tanh", xai_temperature_len=-1,
        attn_type=AttentionType.DECODER, is_cross_attention=False, sliding_window_size=-1,
    )  # fmt: skip


def drawn_inputs(width: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = _drawn(3, len(LENGTHS) * width, HEADS * DIM)
    k, v = (_drawn(side, len(LENGTHS) * width, KV_HEADS, DIM) for side in (4, 5))
    return q, k, v


def slots_of_rows() -> torch.Tensor:
    return torch.randperm(ROWS * CONTEXT, generator=torch.Generator().manual_seed(0)).view(ROWS, CONTEXT)


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
