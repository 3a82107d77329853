"""Where an output starts to repeat itself: small models fall into loops, which any draft predicts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LONGEST_BLOCK = 128
"""Maximum tokens of a block to search for."""

SHORTEST_COPY = 32
"""Tokens that must be repeated: shorter repetitions are normal in lists and tables."""


def loop_start(tokens: npt.ArrayLike, kept: int) -> int:
    """Return the position, of *kept* ones, where the first exact repetition in *tokens* starts; *kept* without one."""
    copy = first_copy(tokens)
    # The round before a copy's first token already drafts it.
    return kept if copy is None else max(1, min(copy - 1, kept))


def first_copy(tokens: npt.ArrayLike) -> int | None:
    """Return where the first exact repetition starts in *tokens*, or None.

    It is the first stretch that equals, token for token, what directly precedes it: a whole block again, or a short
    block repeatedly, `SHORTEST_COPY` tokens or more.
    """
    ids = np.asarray(tokens)
    found = (_first_copy(ids, block) for block in range(1, min(LONGEST_BLOCK, len(ids) - 1) + 1))
    return min((start for start in found if start is not None), default=None)


def _first_copy(ids: npt.NDArray[np.int64], block: int) -> int | None:
    """Return the first index from which max(block, SHORTEST_COPY) tokens equal those *block* places before them."""
    needed = max(block, SHORTEST_COPY)
    same = np.concatenate([[0], np.cumsum(ids[block:] == ids[:-block])])
    whole = np.flatnonzero(same[needed:] - same[:-needed] == needed)
    return int(whole[0]) + block if len(whole) else None
