"""Captures CUDA graphs faster than SGLang 0.5.23, and lets them share buffers.

- SGLang runs a full garbage collection before and after each kind of graph, 0.5 s each: five kinds at start-up and
  three more for each further runtime state. Here live objects are frozen before each kind, until start-up is over, so
  the next collection scans only newer objects.
- SGLang runs the model twice before each capture, to load kernels and create one-time objects. Here only the first and
  largest graph of a kind has these runs, because those of 58 prefill graphs of up to 8,192 tokens take most of a
  start's GPU time. A graph of size 1 has them too: torch.compile compiles a function anew for it, but not in a capture.
- An EAGLE-3 draft reads hidden states of three target layers, joined at the end of a verify pass. Each graph keeps its
  output, (requests, steps + 1, 3 x hidden size) numbers: 0.36 GB for six numbers of steps of an 8B Llama with 27 batch
  sizes up to 64. The draft extend reads them before the next verify pass, so all graphs write to the same rows.
- Each fa3 attention backend keeps four page tables of (largest batch, pages of the longest context) int32 numbers: 0.13
  GB at batch size 64 and 131,072 tokens. A state of n steps has n + 1 backends. Only one state runs at a time, and a
  table is refilled before each graph that reads it, so all states share them. A request's row has the same entries for
  each of a round's draft passes, which are filled together, and each pass reads up to its own length.

With an 8B model and graphs up to batch size 64, the first two make five further states take 5.1 s instead of 11.7 s
(H100), and SGLang's own graphs of a second start 6 s instead of 18 s (H200).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

_TABLES = {
    "decode_cuda_graph_metadata": ("page_table", "page_table_draft_decode", "swa_page_table", "strided_indices"),
    "target_verify_metadata": ("page_table", "swa_page_table", "strided_indices"),
    "draft_extend_metadata": ("page_table", "swa_page_table", "strided_indices"),
}
"""Attributes of fa3's backend, each a dict, and its entries that are tables; strided indices are never written."""


class Captures(Stage):
    """The captures of one scheduler."""

    def __init__(self) -> None:
        self.without_run = Guard("short-captures")
        self.shared_rows = Guard("shared-rows")
        self.shared_tables = Guard("shared-tables")
        self._verifying = False
        """Whether a verify pass is being captured, or run before its capture."""
        self._rows: dict[Hashable, Any] = {}
        self._tables: dict[Hashable, Any] = {}

    def freeze_gc(self, rest: Rest, enable: bool) -> AbstractContextManager[None]:
        """Collect garbage newer than the previous kind of graph; return the context for capturing this kind.

        With *enable*, SGLang also collects garbage during the capture.
        """
        if enable:
            return rest(enable)  # type: ignore[no-any-return]
        gc.collect()
        gc.freeze()
        return contextlib.nullcontext()

    def capture_one(
        self, rest: Rest, backend: Any, shape_key: Any, forward_fn: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> None:
        """Capture one graph with SGLang's function, which calls *forward_fn* three times and captures the last call.

        The first graph of a kind has both runs before it, and so has the first of size 1. Others have one with several
        ranks, because a capture that fails on one rank cannot be repeated, and with torch.compile, which compiles in
        that run; otherwise none.
        """
        runner = backend._cuda_graph_runner
        mode = getattr(runner, "capture_forward_mode", None)
        compiles = getattr(runner, "enable_torch_compile", False)
        self._verifying = mode is not None and mode.is_target_verify() and not compiles
        try:
            first = _kind(shape_key) not in map(_kind, backend._graphs)
            # The run before the first graph of a session also sizes the output that its prefill graphs share.
            unsized = getattr(backend, "_shared_output_buffer", True) is None
            if first or unsized or self.without_run.closed:
                rest(backend, shape_key, forward_fn, *args, **kwargs)
            elif compiles or backend._tp_group.world_size > 1:
                rest(backend, shape_key, _second_from_first(forward_fn), *args, **kwargs)
            else:
                before = self.without_run.attempt(_batch_of, forward_fn) or []
                third_alone = _in_turn(lambda: None, lambda: None, forward_fn)
                self.without_run.attempt(rest, backend, shape_key, third_alone, *args, **kwargs)
                if self.without_run.closed:
                    for part, attributes in before:  # a pass that fails may leave others
                        vars(part).update(attributes)
                    rest(backend, shape_key, forward_fn, *args, **kwargs)
        finally:
            self._verifying = False

    def capture(self, rest: Rest, graphs: Any, *args: Any, **kwargs: Any) -> None:
        """Capture all graphs of one kind, of each layer in a multi-layer draft extend, with shared page tables."""
        for runner in filter(None, getattr(graphs, "runners", (graphs,))):
            for backend in getattr(runner.attn_backend, "attn_backends", (runner.attn_backend,)):
                if type(backend).__name__ == "FlashAttentionBackend":
                    self.shared_tables.attempt(self._share, backend)
        rest(graphs, *args, **kwargs)

    def join_hidden_states(self, rest: Rest, hidden_states: Any) -> Any:
        """Join a list of [tokens, hidden size]; while a verify pass is being captured, into the shared rows."""
        joined = self.shared_rows.attempt(self._joined, hidden_states) if self._verifying else None
        return rest(hidden_states) if joined is None else joined

    def _joined(self, hidden_states: Any) -> Any:
        import torch

        if not isinstance(hidden_states, list) or len(hidden_states) < 2:
            return None
        if len({part.dtype for part in hidden_states}) > 1:
            return None
        first, width = hidden_states[0], sum(part.shape[-1] for part in hidden_states)
        alike = (width, first.dtype, first.device)
        held = self._rows.get(alike)
        if held is None or len(held) < len(first):  # grows in the run before a capture
            held = self._rows[alike] = first.new_empty(len(first), width)
        return torch.cat(hidden_states, dim=-1, out=held[: len(first)])

    def _share(self, backend: Any) -> None:
        """Replace the page tables of *backend* with those of the first one like it."""
        for attribute, names in _TABLES.items():
            tables = getattr(backend, attribute, {})
            for name in names:
                own = tables.get(name)
                if own is not None:
                    alike = (backend.is_draft_runner, attribute, name, own.shape, own.dtype, own.device)
                    tables[name] = self._tables.setdefault(alike, own)


def _kind(shape_key: Any) -> Any:
    """Return the key of a graph without its size, but for whether that is 1."""
    return dataclasses.replace(shape_key, size=min(shape_key.size, 2))


def _batch_of(forward: Callable[[], Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Return the batch that SGLang's *forward* runs and its speculative input, if it has any, with their attributes."""
    batch = inspect.getclosurevars(forward).nonlocals.get("forward_batch") if inspect.isfunction(forward) else None
    parts = (batch, getattr(batch, "spec_info", None))
    return [(part, dict(vars(part))) for part in parts if part is not None]


def _second_from_first(forward: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap *forward* so that its second call returns the first call's result without running."""
    kept: list[Any] = []

    def first() -> Any:
        kept.append(forward())
        return kept[0]

    return _in_turn(first, kept.pop, forward)


def _in_turn(*calls: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function whose first call is the first of *calls*, and so on; the last is that of all further ones."""
    left = list(calls)
    return lambda: (left.pop(0) if len(left) > 1 else left[0])()
