"""Draft passes that end once their keys and values are in the pool.

The keys and values of a one-layer draft depend only on the layer's input. Where the output is not read, an attention
backend writes them and ends the pass, which saves half of a draft extend or more, and two thirds of a prefill. This
works for any draft model and runs without a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NoReturn

from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class Written(Exception):
    """Raised once the keys and values are in the pool, to end the pass."""


class KvOnlyBackend:
    """An attention backend that writes keys and values and ends the pass; other attributes are *backend*'s."""

    def __init__(self, backend: Any, pool: Any) -> None:
        self._backend, self._pool = backend, pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Do nothing: the pass has no attention."""

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> NoReturn:
        """Write *k* and *v* as the backend would, unless the model has done so, and raise Written."""
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        if save_kv_cache:
            where = KVWriteLoc.for_layer(forward_batch, layer)
            scales = () if layer.k_scale is None else (layer.k_scale, layer.v_scale)
            self._pool.set_kv_buffer(layer, where, k, v, *scales)
        raise Written


@contextmanager
def swapped(*changes: tuple[Any, Mapping[str, Any]]) -> Iterator[None]:
    """Set attributes inside the ``with``; *changes* pair an object with its attributes' values by name."""
    before = [(where, {name: getattr(where, name) for name in values}) for where, values in changes]
    try:
        for where, values in changes:
            for name, value in values.items():
                setattr(where, name, value)
        yield
    finally:
        for where, values in before:
            for name, value in values.items():
                setattr(where, name, value)


@contextmanager
def at_keys_and_values(draft: Any) -> Iterator[None]:
    """End a pass of *draft* inside the ``with``, and the ``with`` itself, once keys and values are written."""
    runner = draft.draft_runner
    own = KvOnlyBackend(runner.attn_backend, runner.token_to_kv_pool)
    of_draft = {"draft_extend_attn_backend": own, "cuda_graph_runner_for_draft_extend": None}
    of_runner = {"attn_backend": own, "prefill_cuda_graph_runner": None}
    with suppress(Written), swapped((draft, of_draft), (runner, of_runner)):
        yield


class Chunks(Stage):
    """Runs the draft over the chunks of one scheduler's long prompts."""

    def __init__(self, worker: Any) -> None:
        self.guard = Guard("short-prefill")
        self.passes = 0
        """Passes that ended early."""
        self._worker = worker

    @cached_property
    def _may(self) -> bool:
        return features.may("short-prefill", Setup.of(self._worker))

    def draft_prefill(self, rest: Rest, drafter: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the draft over a prompt; for every chunk but the last, only write keys and values.

        Such a chunk returns a placeholder EagleDraftInput that is never read.
        """
        if not self.guard.closed and len(batch.reqs) == 1 and batch.reqs[0] is batch.chunked_req:
            before = batch.input_ids, batch.spec_info
            found = self.guard.attempt(self._written, rest, drafter, batch, *args, **kwargs)
            if found is not None:
                return found
            batch.input_ids, batch.spec_info = before
        return rest(drafter, batch, *args, **kwargs)

    def shortened(self) -> dict[str, int]:
        return {"prefills": self.passes}

    def _written(
        self, extend: Rest, draft: Any, batch: Any, hidden: Any, tokens: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        if not self._may:
            return None
        with at_keys_and_values(draft):
            extend(draft, batch, hidden, tokens, *args, **kwargs)
        found = EagleDraftInput(bonus_tokens=tokens, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1)
        self._worker._stub_skipped_draft_extend(batch, SimpleNamespace(next_draft_input=found))
        self.passes += 1
        return found
