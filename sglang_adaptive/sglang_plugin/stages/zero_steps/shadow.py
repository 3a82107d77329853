"""Shadow acceptance: at zero steps, checks whether the draft would have proposed the token that the target chose.

A draft extend (catch_up.py) ends with the draft's choice of the next token, which is the first draft of a drafted
round. The next zero-step round computes the target's token for that position anyway, so it shows whether the first
draft would have been accepted, without a draft pass or a wider verify pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.observation import RoundNote

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ShadowDrafts:
    """The draft's choice of the next token for some requests."""

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

    def attach(self, note: RoundNote, keys: Sequence[Hashable]) -> None:
        """Let the *note* on a zero-step round of requests *keys* say, once its result arrives, which were right."""
        pairs = [(row, self.places[key]) for row, key in enumerate(keys) if key in self.places]
        if pairs:
            note.arriving.append(lambda note, result: setattr(note, "shadow_accepts", accepts(self, pairs, result)))


def accepts(drafts: ShadowDrafts, pairs: Sequence[tuple[int, int]], result: Any) -> list[int]:
    """Return 1 for each request whose shadow draft is the target's token, else 0.

    *pairs* are a request's row in the batch of *result*, which has arrived, and its place among *drafts*. The list is
    empty where SGLang simulates acceptance (SGLANG_SIMULATE_ACC_LEN), because that ignores the drafts. A benchmark
    replaces this function to draw acceptance.
    """
    from sglang.srt.environ import envs

    if envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:  # as SGLang's verify asks
        return []
    chosen, tokens = result.next_token_ids.tolist(), drafts.tokens.tolist()
    return [int(chosen[row] == tokens[place]) for row, place in pairs]
