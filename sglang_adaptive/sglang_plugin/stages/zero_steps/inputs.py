"""Inputs of zero-step rounds that the host knows: the links of a tree with one node, and the requests' next lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
"""Tensors of a verify input whose row i does not depend on how many rows there are."""


class ZeroStepInputs(Stage):
    """Reuses the links of a zero-step verify pass, which never change.

    SGLang 0.5.23 creates them in each round, with a mask that a chain's attention never reads: four small kernels. Here
    those of the largest batch so far are kept, and a smaller batch uses the first rows. Nothing writes to them.
    """

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


class KnownLengths(Stage):
    """Tracks request lengths on the host after a zero-step round, without a wait.

    Some attention backends, such as FlashInfer, plan a round on the host from the request lengths, for which SGLang
    0.5.23 waits before each round. A zero-step round adds one token per request, so the lengths after it are known in
    advance, and the next round is launched while it runs, as without speculation.
    """

    def __init__(self, unread: Callable[[Any], bool] = lambda batch: False) -> None:
        """*unread* says whether the round of a batch reads no lengths on the host."""
        self._unread = unread
        self.guard = Guard("host-lengths")
        self._requests: list[Any] = []
        self._after: Any = None
        """Tokens of each of these requests, including the one from the round, int64 on the host."""

    def before_zero_steps(self, batch: Any) -> None:
        """Note how long *batch*'s requests will be after the zero-step round that begins."""
        if batch.seq_lens_cpu is not None:
            self.guard.attempt(self._expect, batch)

    def lengths_on_host(self, rest: Rest, future_map: Any, batch: Any, **kwargs: Any) -> None:
        """Give *batch* its lengths on the host where they are known, without SGLang's wait; none if they are unread."""
        needed = future_map.needs_cpu_seq_lens
        known = self.guard.attempt(self._known, batch) if needed else None
        if needed and self._unread(batch):
            known = None
        elif known is None:
            rest(future_map, batch, **kwargs)
            return
        future_map.needs_cpu_seq_lens = False
        try:
            rest(future_map, batch, **kwargs)
        finally:
            future_map.needs_cpu_seq_lens = True
        if known is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = known, int(known.sum())

    def _expect(self, batch: Any) -> None:
        assert len(batch.reqs) == len(batch.seq_lens_cpu)
        self._requests, self._after = [*batch.reqs], batch.seq_lens_cpu + 1

    def _known(self, batch: Any) -> Any:
        """Return the lengths of *batch*'s requests, int64 [requests] on the host; None if one is unknown."""
        if batch.spec_info is None or batch.spec_info.future_indices is None:
            if not set(self._requests).isdisjoint(batch.reqs):  # a prefill starts or restarts them
                self._after = None
            return None
        # Each decode round clears all lengths; a zero-step round sets them again when it begins.
        after, self._after = self._after, None
        if after is None or batch.reqs == self._requests:
            return after
        places = {request: place for place, request in enumerate(self._requests)}
        rows = [places.get(request) for request in batch.reqs]
        return None if None in rows else after[rows]
