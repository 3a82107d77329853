"""Runs the attention of zero-step rounds with the decode kernel, on SGLang's Triton and FlashInfer backends.

A zero-step round verifies one token per request, and both backends of SGLang 0.5.23 verify with a prefill kernel.
Triton's runs a program per query head and tile of queries, so all query heads of a group read the same keys: 1.07 times
a plain decode for one request of Llama-3.1-8B's shape on an H100, and 2.2 times for 64. FlashInfer's reads a mask that
has to be packed, and its plan needs lengths from the device. Here they get a plain decode's metadata and kernel, except
with DFLASH, whose lengths on the host are bounds.
"""

from __future__ import annotations

import copy
from typing import Any
from weakref import WeakKeyDictionary

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class DecodeKernel(Stage):
    """Decides which passes a backend runs as a plain decode."""

    def __init__(self) -> None:
        self.guard = Guard("decode-kernel")
        self._able: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        """By backend, whether it verifies one token with its decode kernel; a graph never changes its kernel."""

    def triton_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Build the metadata of a pass: of a plain decode if it is a zero-step round."""
        if self.runs(backend, forward_batch):
            forward_batch = _as_decode(forward_batch)
        rest(backend, forward_batch, *args, **kwargs)

    plan = plan_replay = triton_metadata

    def forward_extend(
        self, rest: Rest, backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Run attention, as a plain decode in a zero-step round."""
        if self.runs(backend, forward_batch):
            return backend.forward_decode(q, k, v, layer, forward_batch, *args, **kwargs)
        return rest(backend, q, k, v, layer, forward_batch, *args, **kwargs)

    def runs(self, backend: Any, forward_batch: Any) -> bool:
        """Whether the pass verifies one token a request, and *backend* does so with its decode kernel."""
        if not forward_batch.forward_mode.is_target_verify():
            return False
        verified = forward_batch.spec_info  # a replay's view of the batch does not say which algorithm drafts
        if getattr(verified, "draft_token_num", None) != 1 or type(verified).__name__ == "DFlashVerifyInput":
            return False
        if backend not in self._able:
            self._able[backend] = bool(self.guard.attempt(_reads_as_usual, backend))
        return self._able[backend]


def _reads_as_usual(backend: Any) -> bool:
    """Whether *backend* reads keys and values in a plain decode as it does in a verify pass.

    Sliding windows are excluded because no GPU has shown them right, subclasses because they have their own kernels.
    """
    kind = type(backend).__name__
    if kind == "TritonAttnBackend":
        other = (backend.sliding_window_size or 0) > 0 or backend.is_draft_runner or backend.use_mla
        usual = not other and backend.dcp_size == 1
    elif kind == "FlashInferAttnBackend":
        dequantizes = backend.prefill_uses_dequant_workspace or backend.decode_uses_dequant_workspace
        # Without a reason, there is neither a sliding window nor cross attention.
        usual = backend.dispatch_reason is None and not backend.skip_prefill and not dequantizes
    else:
        return False
    return usual and not (backend.enable_deterministic or backend.kv_index_translator.is_translating)


def _as_decode(forward_batch: Any) -> Any:
    """Return *forward_batch* as a plain decode, where the lengths include the decoded token."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    decode = copy.copy(forward_batch)
    decode.forward_mode, decode.spec_info = ForwardMode.DECODE, None
    decode.seq_lens = forward_batch.seq_lens + 1
    if forward_batch.seq_lens_cpu is not None:
        decode.seq_lens_cpu = forward_batch.seq_lens_cpu + 1
    if forward_batch.seq_lens_sum is not None:
        decode.seq_lens_sum = forward_batch.seq_lens_sum + forward_batch.batch_size
    return decode
