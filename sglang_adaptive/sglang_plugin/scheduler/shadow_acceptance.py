"""Shadow acceptance: at zero steps, whether the draft would have drafted the token that the target chose.

A draft extend (zero_steps/catch_up.py) ends with the draft's choice of the next token, the one that it would draft
first if drafting resumed. The next zero-step round computes the target's token for that place anyway, so it is known
one round later whether the first draft would have been accepted, without a draft and without a wider verify pass.
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
    """The next token of some requests, by the draft."""

    tokens: Tensor
    """[requests], int64, on the host: to be read once the result of a later round has arrived."""

    places: dict[Hashable, int]
    """By request, its index in *tokens*."""

    @classmethod
    def of(cls, draft: Any, chosen: Tensor, keys: Sequence[Hashable]) -> ShadowDrafts:
        """Send the draft's first choices, [requests, 1] in its own vocabulary, to the host; nothing waits for them."""
        tokens = chosen[:, 0]
        if draft.hot_token_id is not None:
            tokens = draft.hot_token_id[tokens]
        return cls(tokens.to("cpu", non_blocking=True), {key: place for place, key in enumerate(keys)})

    def attach(self, result: Any, keys: Sequence[Hashable]) -> None:
        """Let *result*, of a zero-step round of the requests *keys*, carry these tokens for them."""
        pairs = [(row, self.places[key]) for row, key in enumerate(keys) if key in self.places]
        if pairs:
            setattr(result, _ON_RESULT, (self.tokens, pairs))


def rows(result: Any) -> list[int]:
    """Return the places in its batch of the requests that have a shadow draft in this round."""
    return [row for row, _ in getattr(result, _ON_RESULT, (None, ()))[1]]


def shadow_accepts(result: Any, batch: Any) -> list[int]:
    """Return 1 for each request whose shadow draft is the target's token, 0 for another; none where there is no draft.

    *result* has arrived on the host. *batch* is for benchmarks that draw acceptance, which stand in for this function.
    Where SGLang simulates acceptance (SGLANG_SIMULATE_ACC_LEN) the answer is empty: what a real draft would have got
    right says nothing of what the simulation accepts.
    """
    carried = getattr(result, _ON_RESULT, None)
    if carried is None or _acceptance_is_simulated():
        return []
    tokens, pairs = carried
    chosen, drafts = result.next_token_ids.tolist(), tokens.tolist()
    return [int(chosen[row] == drafts[place]) for row, place in pairs]


def note_extend(result: Any, ran: bool) -> None:
    """Let *result*, of a zero-step round, carry whether the draft's extend *ran* in it, for the rounds that owed it."""
    setattr(result, _EXTENDED, ran)


def extended(result: Any) -> bool:
    """Return whether a round ends a cycle of zero-step rounds; every round does where nothing is held back."""
    return bool(getattr(result, _EXTENDED, True))


def _acceptance_is_simulated() -> bool:
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_SIMULATE_ACC_LEN.get() > 0)  # as SGLang's verify asks
