"""The acceptance process: which draft positions the target would accept.

A request has a conditional acceptance probability ``h_j = min(1, p * decay**(j-1))`` for draft position ``j``
(1-based), given that the position before it was accepted. A round drafted with ``s`` steps yields one bonus
token and every draft before the first rejection, so

    E[tokens | s] = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_s
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
CountArray = NDArray[np.int8]


def hazards(p: ArrayLike, decay: ArrayLike, depth: int) -> FloatArray:
    """Return ``h`` for positions ``1..depth`` on a new last axis; *p* and *decay* broadcast."""
    base = np.asarray(p, dtype=float)[..., None]
    rate = np.asarray(decay, dtype=float)[..., None]
    return np.asarray(np.clip(base * rate ** np.arange(depth), 0.0, 1.0))


def expected_tokens(h: FloatArray) -> FloatArray:
    """Return the expected tokens of one request for 0..depth steps: shape ``h.shape[:-1] + (depth + 1,)``."""
    reached = np.cumsum(np.cumprod(h, axis=-1), axis=-1)
    return np.concatenate([np.ones((*h.shape[:-1], 1)), 1.0 + reached], axis=-1)


def draw_accepted(h: FloatArray, uniforms: NDArray[np.float32]) -> CountArray:
    """Return how many drafts would be accepted at unlimited depth: the first run of ``uniforms < h``.

    A round drafted with ``s`` steps accepts ``min(s, drawn)``, so every depth, and every policy, is judged on
    the same draws (common random numbers).
    """
    accepted = np.asarray(uniforms < h)
    return np.asarray(np.logical_and.accumulate(accepted, axis=-1).sum(axis=-1), dtype=np.int8)
