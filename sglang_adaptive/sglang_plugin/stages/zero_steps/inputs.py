"""Reuses inputs of a zero-step verify pass that never change: the links of a tree with one node.

SGLang 0.5.23 creates them in each round, with a mask that a chain's attention never reads: four small kernels. Here
those of the largest batch so far are kept, and a smaller batch uses the first rows. Nothing writes to them.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
"""Tensors of a verify input whose row i does not depend on how many rows there are."""


class ZeroStepInputs(Stage):
    """Makes the verify inputs of one worker's zero-step rounds."""

    def __init__(self) -> None:
        self.guard = Guard("zero-step-inputs")
        self._links: dict[str, Any] = {}
        self._rows = 0

    def zero_step_input(self, rest: Rest, worker: Any, batch: Any) -> Any:
        """Return the verify input of a zero-step round of *batch*, from kept tensors or SGLang."""
        mask = self.guard.attempt(_unread_mask, worker, batch)
        mine = None if mask is None else self.guard.attempt(self._built, worker, batch, mask)
        if mine is not None:
            return mine
        made = rest(worker, batch)
        if mask is not None:
            self._links, self._rows = {name: getattr(made, name) for name in _LINKS}, batch.seq_lens.shape[0]
        return made

    def _built(self, worker: Any, batch: Any, mask: Any) -> Any:
        """Return the verify input from kept tensors; None if the batch is larger than any before."""
        rows = batch.seq_lens.shape[0]
        if not 0 < rows <= self._rows:
            return None
        import torch
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        return EagleVerifyInput(
            draft_token=batch.spec_info.bonus_tokens,
            custom_mask=mask,
            positions=batch.seq_lens.to(torch.int64),
            **{name: kept[:rows] for name, kept in self._links.items()},
            retrieve_cum_len=None,
            spec_steps=0,
            topk=worker.topk,
            draft_token_num=1,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )


def _unread_mask(worker: Any, batch: Any) -> Any:
    """Return the buffer for the round's tree mask; None where the attention backend may read it."""
    runner = worker.target_worker.model_runner
    mask, requests = runner.attn_backend.verify_mask, batch.seq_lens.shape[0]
    unread = mask is not None and not mask.is_read and mask.fits(requests) and runner.watermark_state is None
    return mask.buffer if unread and not batch.forward_mode.is_idle() else None
