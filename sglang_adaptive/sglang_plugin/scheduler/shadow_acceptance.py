"""Shadow acceptance: at zero steps, whether the draft would have proposed the token that the target chose.

A draft extend (zero_steps/catch_up.py) ends with the draft's choice of the next token, the first draft of a round that
drafts. The next zero-step round computes the target's token for that position anyway. So one round later it is known
whether the first draft would have been accepted, without a draft pass and without a wider verify pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ON_RESULT = "sglang_adaptive_shadow_drafts"
_EXTENDED = "sglang_adaptive_extended"


@dataclass(frozen=True, slots=True)
class ShadowDrafts:
    """The draft's choice of the next token of some requests."""

    tokens: Tensor
    """[requests], int64, on the host; valid once the result of a later round has arrived."""

    places: dict[Hashable, int]
    """By request, its index in *tokens*."""

    @classmethod
    def of(cls, draft: Any, chosen: Tensor, keys: Sequence[Hashable]) -> ShadowDrafts:
        """Copy the draft's first choices, [requests, 1] in its own vocabulary, to the host; nothing waits for them."""
        tokens = chosen[:, 0]
        if draft.hot_token_id is not None:
            tokens = draft.hot_token_id[tokens]
        return cls(tokens.to("cpu", non_blocking=True), {key: place for place, key in enumerate(keys)})

    def attach(self, result: Any, keys: Sequence[Hashable]) -> None:
        """Attach these tokens to *result*, of a zero-step round of the requests *keys*."""
        pairs = [(row, self.places[key]) for row, key in enumerate(keys) if key in self.places]
        if pairs:
            setattr(result, _ON_RESULT, (self.tokens, pairs))


def rows(result: Any) -> list[int]:
    """Return the places in its batch of the requests that have a shadow draft in this round."""
    return [row for row, _ in getattr(result, _ON_RESULT, (None, ()))[1]]


def shadow_accepts(result: Any, batch: Any) -> list[int]:
    """Return for each request with a shadow draft 1 where it is the target's token, else 0.

    *result* has arrived on the host. *batch* is for benchmarks, which replace this function to draw acceptance. The
    list is empty where SGLang simulates acceptance (SGLANG_SIMULATE_ACC_LEN), because that ignores the drafts.
    """
    carried = getattr(result, _ON_RESULT, None)
    if carried is None or _acceptance_is_simulated():
        return []
    tokens, pairs = carried
    chosen, drafts = result.next_token_ids.tolist(), tokens.tolist()
    return [int(chosen[row] == drafts[place]) for row, place in pairs]


def note_extend(result: Any, ran: bool) -> None:
    """Note on *result*, of a zero-step round, whether the draft extend *ran* in it."""
    setattr(result, _EXTENDED, ran)


def extended(result: Any) -> bool:
    """Return whether a round ends a cycle of zero-step rounds; every round does where none is deferred."""
    return bool(getattr(result, _EXTENDED, True))


def _acceptance_is_simulated() -> bool:
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_SIMULATE_ACC_LEN.get() > 0)  # as SGLang's verify asks
