"""An SGLang attention backend with the kernels of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.speculative.spec_utils import resolve_draft_decode_window

from sglang_adaptive.lab.cpu_engine.kernels.attention import (
    PaddedPlan,
    RaggedPlan,
    decode_plan,
    draft_plans,
    padded_attention,
    ragged_attention,
    ragged_plan,
    window_plan,
    without_order,
)

if TYPE_CHECKING:
    from torch import Tensor


class TorchRefBackend(AttentionBackend):  # type: ignore[misc]  # SGLang's types are not followed
    """Prefill, decode, verify and draft-extend for dense multi-head and grouped-query attention.

    Raises NotImplementedError when the model needs what the kernels do not support.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        if model_runner.use_mla_backend:
            raise NotImplementedError("the CPU engine has no multi-head latent attention (MLA)")
        self.table = model_runner.req_to_token_pool.req_to_token
        # SGLang's name: it assigns the target's pool here while a Frozen-KV draft runs.
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.dtype = model_runner.dtype
        self.plan: PaddedPlan | RaggedPlan | None = None
        self._block: tuple[PaddedPlan, PaddedPlan] | None = None
        """A plan, and its variant for layers that attend to the whole drafted block."""
        self._known_layers: set[int] = set()

    def init_forward_metadata(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        rows = forward_batch.req_pool_indices
        if mode.is_idle() or forward_batch.batch_size == 0:
            self.plan = None
        elif mode.is_decode():
            self.plan = decode_plan(self.table, rows, forward_batch.seq_lens, self.dtype)
        elif mode.is_target_verify():
            self.plan = self._verify_plan(forward_batch)
        elif mode.is_draft_extend_v2():
            width = forward_batch.extend_seq_lens_cpu[0]
            # With attention DP, padding rows of the batch are shorter than a window.
            prefix = (forward_batch.seq_lens - width).clamp(min=0)
            self.plan = window_plan(self.table, rows, prefix, width, self.dtype)
        else:
            prefix, extend = forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu
            self.plan = ragged_plan(self.table, rows, prefix, extend)

    def _verify_plan(self, forward_batch: Any) -> PaddedPlan:
        spec = forward_batch.spec_info
        rows, prefix = forward_batch.req_pool_indices, forward_batch.seq_lens
        # The mask of a chain is the causal one; DFLASH knows no trees.
        mask = None if getattr(spec, "tree_topk", 1) == 1 else spec.custom_mask
        return window_plan(self.table, rows, prefix, spec.draft_token_num, self.dtype, mask)

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        if layer.layer_id not in self._known_layers:
            _require_supported(layer)
            self._known_layers.add(layer.layer_id)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        plan = self.plan
        if isinstance(plan, RaggedPlan):
            return ragged_attention(query, keys, values, plan, layer.scaling)
        assert plan is not None  # SGLang calls init_forward_metadata before every forward pass
        if layer.attn_type == AttentionType.ENCODER_ONLY:
            plan = self._of_block(plan)
        return padded_attention(query, keys, values, plan, layer.scaling)

    forward_decode = forward_extend

    def _of_block(self, plan: PaddedPlan) -> PaddedPlan:
        if self._block is None or self._block[0] is not plan:
            self._block = plan, without_order(plan)
        return self._block[1]

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        """Return the length of a padding row, as attention DP uses them."""
        return 1

    def support_triton(self) -> bool:
        return False


class TorchRefDraftBackend:
    """One `TorchRefBackend` for every draft step but the last, which only samples."""

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        self.topk = topk
        self.num_steps = num_steps
        self.attn_backends = [TorchRefBackend(model_runner) for _ in range(num_steps - 1)]
        self.window, self.sinks = resolve_draft_decode_window(model_runner)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        first = self.attn_backends[0]
        plans = draft_plans(
            first.table,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens,
            self.topk,
            self.num_steps,
            first.dtype,
            self.window,
            self.sinks,
        )
        for backend, plan in zip(self.attn_backends, plans, strict=True):
            backend.plan = plan


def _require_supported(layer: Any) -> None:
    window, block = layer.sliding_window_size, AttentionType.ENCODER_ONLY
    for asked, what in (
        (layer.is_cross_attention, "cross attention"),
        (layer.attn_type not in (AttentionType.DECODER, block), f"attention type {layer.attn_type}"),
        (window is not None and window > -1, f"sliding-window attention (window {window})"),
        (layer.logit_cap, f"a logit cap ({layer.logit_cap})"),
    ):
        if asked:
            raise NotImplementedError(f"the CPU engine does not do {what} (layer {layer.layer_id})")
