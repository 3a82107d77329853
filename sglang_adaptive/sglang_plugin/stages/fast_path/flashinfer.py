"""Plans FlashInfer's passes on the device, so that nothing waits for request lengths.

SGLang 0.5.23 also waits three more times in each round, for lengths that it reads back from the device. Where a pass is
replayed from a CUDA graph, one kernel lays it out from the lengths on the device (`tile_kernel.py`). For any other
pass, the lengths are read back first and SGLang plans it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup, is_plain_flashinfer
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.tile_kernel import Layout, lay_out, with_small_tiles

AMPERE, MOST_HEAD_DIM = 8, 256
"""From this compute capability on, and up to this head size, FlashInfer has 16-row tiles for every shape."""


class DevicePlans(Stage):
    """Plans one worker's FlashInfer passes."""

    def __init__(self, decode_kernel: DecodeKernel) -> None:
        """*decode_kernel* says which passes run as a plain decode."""
        self._decode_kernel = decode_kernel
        self.guard = Guard("device-plans")
        self._covered: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        """By the target's attention backend, whether rounds read no lengths on the host."""
        self._plain: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._layouts: WeakKeyDictionary[Any, Layout] = WeakKeyDictionary()

    def reads_none(self, worker: Any, batch: Any) -> bool:
        """Whether the next round of *worker* needs none of the lengths of *batch*, of any kind, on the host."""
        decodes = batch.spec_info is not None and batch.seq_lens.is_cuda
        return decodes and bool(self.guard.attempt(self._reads_none, worker, batch))

    def _reads_none(self, worker: Any, batch: Any) -> bool:
        graphs = worker.target_worker.model_runner.decode_cuda_graph_runner
        if not graphs or not batch.forward_mode.is_decode() or batch.seq_lens.shape[0] > graphs.max_bs:
            return False
        target = worker.target_worker.model_runner.attn_backend
        if target not in self._covered:
            draft = worker._draft_worker
            drafts = () if draft.draft_attn_backend is None else (draft.draft_attn_backend,)
            attention = (target, draft.draft_extend_attn_backend, *drafts)
            setup = Setup(worker, draft, worker.target_worker.model_runner, attention)
            self._covered[target] = features.may("device-plans", setup)
        return self._covered[target]

    # -- passes ---------------------------------------------------------------------------------------------------

    def plan(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Let SGLang plan a pass without a graph, with the lengths that its planner reads."""
        told = with_lengths(forward_batch)
        if told.extend_prefix_lens_cpu is None and told.extend_prefix_lens is not None:
            told.extend_prefix_lens_cpu = told.extend_prefix_lens.tolist()
        rest(backend, told, *args, **kwargs)

    def plan_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
        decodes = self._decode_kernel.runs(backend, forward_batch)
        if in_capture or not self._attempt(self._planned, backend, forward_batch, decodes):
            rest(backend, with_lengths(forward_batch), in_capture)
            if in_capture and not decodes:
                self.guard.attempt(self.captured, backend, forward_batch)

    def plan_draft_replay(self, rest: Rest, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
        if in_capture or not self._attempt(self._draft_planned, backend, forward_batch):
            rest(backend, with_lengths(forward_batch), in_capture)

    def _attempt(self, plan: Callable[..., bool], backend: Any, forward_batch: Any, *more: Any) -> bool:
        """Plan with *plan*; False where SGLang has to, as it plans any pass whose lengths are on the host."""
        return forward_batch.seq_lens_cpu is None and bool(self.guard.attempt(plan, backend, forward_batch, *more))

    def _planned(self, backend: Any, forward_batch: Any, decodes: bool) -> bool:
        if not self._may(backend) or forward_batch.encoder_lens is not None:
            return False
        if decodes:
            return self._lay_out(backend, backend.decode_cuda_graph_metadata, forward_batch, 1, 1)
        wrappers, more, width = _uniform(backend, forward_batch)
        return wrappers is not None and self._lay_out(backend, wrappers, forward_batch, more, width)

    def captured(self, backend: Any, forward_batch: Any) -> None:
        """Size the tiles of a pass that *backend* has planned for a graph by the queries per request."""
        wrappers, _, width = _uniform(backend, forward_batch)
        if wrappers is None or not self._may(backend):
            return
        wrapper, heads = wrappers[forward_batch.batch_size][0], backend.indices_updater_decode
        if heads.head_dim <= MOST_HEAD_DIM and torch.cuda.get_device_properties(wrapper.device).major >= AMPERE:
            rows = width * (heads.num_qo_heads // heads.num_kv_heads)
            wrapper._plan_info = with_small_tiles(wrapper._plan_info, rows)

    def _draft_planned(self, backends: Any, forward_batch: Any) -> bool:
        if backends.topk != 1 or backends.draft_window_size or not all(map(self._may, backends.attn_backends)):
            return False
        return all(
            self._lay_out(one, one.decode_cuda_graph_metadata, forward_batch, step + 1, 1)
            for step, one in enumerate(backends.attn_backends)
        )

    def _may(self, backend: Any) -> bool:
        if backend not in self._plain:
            self._plain[backend] = is_plain_flashinfer(backend)
        return self._plain[backend]

    def _lay_out(self, backend: Any, wrappers: Any, forward_batch: Any, more: int, width: int) -> bool:
        """Plan a pass of *width* queries per request, which reads *more* tokens than the lengths say."""
        requests = forward_batch.batch_size
        wrapper = wrappers[requests][0]
        layout = self._layouts.get(wrapper)
        if layout is None:
            heads, table = backend.indices_updater_decode, backend.kv_index_translator.req_to_token
            assert table.dtype == torch.int32 and table.stride(1) == 1
            processors = torch.cuda.get_device_properties(wrapper.device).multi_processor_count
            layout = Layout.of(wrapper, requests, heads.num_qo_heads, heads.num_kv_heads, processors)
            self._layouts[wrapper] = layout
        if layout.width != width:
            return False
        mask = getattr(wrapper, "_custom_mask_buf", None)
        lay_out(
            layout, forward_batch.req_pool_indices[:requests], forward_batch.seq_lens[:requests],
            backend.kv_index_translator.req_to_token, more, wrapper._paged_kv_indptr_buf, wrapper._paged_kv_indices_buf,
            wrapper._qo_indptr_buf if layout.has_queries else None, mask,
            None if mask is None else wrapper._mask_indptr_buf,
        )  # fmt: skip
        return True


def _uniform(backend: Any, forward_batch: Any) -> tuple[Any, int, int]:
    """Return a pass's wrappers by number of requests, the tokens it reads beyond the lengths, and queries per request.

    The wrappers are None unless the pass verifies chains or extends the draft.
    """
    mode, given = forward_batch.forward_mode, forward_batch.spec_info
    if mode.is_draft_extend_v2():
        return backend.draft_extend_cuda_graph_metadata, 0, given.num_tokens_per_req
    if mode.is_target_verify() and type(given).__name__ == "EagleVerifyInput" and given.topk == 1:
        return backend.prefill_cuda_graph_metadata, given.draft_token_num, given.draft_token_num
    return None, 0, 0


def with_lengths(forward_batch: Any) -> Any:
    """Return *forward_batch* for SGLang's planner, with lengths on the host; read them back if they are not there."""
    if forward_batch.seq_lens_cpu is None:
        lengths = forward_batch.seq_lens[: forward_batch.batch_size].cpu()
        forward_batch.seq_lens_cpu, forward_batch.seq_lens_sum = lengths, int(lengths.sum())
    return forward_batch
