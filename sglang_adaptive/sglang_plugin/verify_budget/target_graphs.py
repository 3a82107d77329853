"""Runs a packed verify pass in the target's graphs of another number of steps.

The graph of `budget` steps reads as many tokens of as many requests as a packed pass: `requests * (budget + 1)`. Its
query lengths lie in a tensor on the device, which fa3 fills in from SGLang's RaggedVerifyLayout before the replay. That
tensor is the rectangle's again after the pass, because SGLang writes it once, when the backend is made.

A graph has the longest query of a request as a constant. FlashAttention 3 takes tile sizes and, where keys are split,
the size of its last kernel's grid from it, so that a longer row could be left out. It is an upper bound: graphs that
may run packed passes are captured with the widest round's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST = "_sglang_adaptive_longest"
"""Attribute of an attention backend: the longest query of a request that its graphs were captured for."""


def note_longest(metadata: Any, backend: Any, longest: int) -> None:
    """Let the graphs of *backend* that are captured with *metadata* allow *longest* tokens of a request."""
    metadata.max_seq_len_q = max(metadata.max_seq_len_q, longest)
    setattr(backend, _LONGEST, longest)


class TargetGraphs:
    """The target's attention backend and graphs, those of *state* (SpecRuntimeState) while a packed pass runs."""

    def __init__(self, runner: Any, state: Any) -> None:
        self._runner = runner
        self._backend, self._graphs = state.target_attn_backend, state.target_graph_runner
        self._width: int = state.speculative_num_draft_tokens
        self._starts: Tensor = self._backend.target_verify_metadata["cu_seqlens_q"].clone()
        self._own: tuple[Any, Any] | None = None

    def tokens(self, requests: int, longest: int) -> int | None:
        """Return the tokens of the graph that *requests* run in, which may be more than theirs.

        None where no graph has as many requests, or rows of up to *longest* tokens.
        """
        graphs = self._graphs
        if graphs is None or graphs.disable_padding or requests > graphs.max_bs:
            return None
        if longest > getattr(self._backend, _LONGEST, 0):
            return None
        return int(graphs._pad_to_bucket(requests, graphs.capture_bs)) * self._width

    def borrow(self) -> None:
        """Let the target run in the state's backend and graphs."""
        self._own = (self._runner.attn_backend, self._runner.decode_cuda_graph_runner)
        self._runner.attn_backend, self._runner.decode_cuda_graph_runner = self._backend, self._graphs

    def give_back(self) -> None:
        """Let the target run in its own again, and make the borrowed one's query lengths a rectangle's."""
        assert self._own is not None
        self._runner.attn_backend, self._runner.decode_cuda_graph_runner = self._own
        self._own = None
        self._backend.target_verify_metadata["cu_seqlens_q"].copy_(self._starts)
