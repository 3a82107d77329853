"""Runs a packed verify pass in the target's graphs of another number of steps.

The graph of `budget` steps reads as many tokens and requests as a packed pass: `requests * (budget + 1)` tokens. Its
query lengths are in a device tensor that fa3 fills in from SGLang's RaggedVerifyLayout before the replay. After the
pass the rectangle's lengths are restored, because SGLang writes them only once, when it makes the backend.

The longest query of a request is a constant of a graph. Where FlashAttention 3 splits keys, the grid of the combine
kernel has that many tokens per request, and would skip the rest of a longer row. Any upper bound is correct, so graphs
that may run packed passes are captured with the widest round's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sglang_adaptive.sglang_plugin.verify_budget.setup_check import longest_row

if TYPE_CHECKING:
    from torch import Tensor


class LongestRows:
    """The longest query per request that each attention backend's graphs take."""

    def __init__(self) -> None:
        self._tokens: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def of(self, backend: Any) -> int:
        """Return the longest row, in tokens, that *backend*'s graphs were captured for; 0 if unknown."""
        return self._tokens.get(backend, 0)

    def allow(self, metadata: Any, backend: Any, forward_mode: Any) -> None:
        """Let the graphs of *backend* that are captured with *metadata* run packed rounds, if they may have to."""
        if not forward_mode.is_target_verify() or backend.topk > 1 or backend.is_draft_runner:
            return
        longest = longest_row(backend.speculative_num_draft_tokens - 1)
        if longest is not None:
            metadata.max_seq_len_q = max(metadata.max_seq_len_q, longest)
            self._tokens[backend] = longest


class TargetGraphs:
    """Switches the target to the attention backend and graphs of fewer steps while a packed pass runs."""

    def __init__(self, runner: Any, state: Callable[[int], Any], longest: LongestRows) -> None:
        """*state* returns the live SpecRuntimeState of a number of steps, or None; new weights may replace it."""
        self._runner, self._state, self._longest = runner, state, longest
        self._rectangles: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
        """By backend, the first token of each request in a rectangle, then the number of tokens."""
        self._own: tuple[Any, Any] | None = None
        self._borrowed: Any = None

    def tokens(self, budget: int, requests: int, longest: int) -> int | None:
        """Return the tokens of the graph of *budget* steps that *requests* run in, including its padding.

        None where no graph takes that many requests, or rows of *longest* tokens.
        """
        state = self._state(budget)
        graphs = None if state is None else state.target_graph_runner
        if graphs is None or graphs.disable_padding or requests > graphs.max_bs:
            return None
        if longest > self._longest.of(state.target_attn_backend):
            return None
        return int(graphs._pad_to_bucket(requests, graphs.capture_bs)) * int(state.speculative_num_draft_tokens)

    def borrow(self, budget: int) -> None:
        """Let the target run in the backend and graphs of *budget* steps."""
        state = self._state(budget)
        self._borrowed = state.target_attn_backend
        if self._borrowed not in self._rectangles:
            self._rectangles[self._borrowed] = self._starts(self._borrowed).clone()
        self._own = (self._runner.attn_backend, self._runner.decode_cuda_graph_runner)
        self._runner.attn_backend, self._runner.decode_cuda_graph_runner = self._borrowed, state.target_graph_runner

    def give_back(self) -> None:
        """Let the target run in its own again, if it does not, and restore the borrowed query lengths."""
        if self._own is None:
            return
        self._runner.attn_backend, self._runner.decode_cuda_graph_runner = self._own
        self._starts(self._borrowed).copy_(self._rectangles[self._borrowed])
        self._own = self._borrowed = None

    @staticmethod
    def _starts(backend: Any) -> Tensor:
        starts: Tensor = backend.target_verify_metadata["cu_seqlens_q"]
        return starts
