"""Every fixed number of steps on a closed loop, without playing its rounds one by one.

At fixed steps each request takes a number of rounds that nothing else has a say in. So a closed loop is a queue in
front of as many counters as the batch has slots, and its rounds follow from the rounds of its requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from sglang_adaptive.lab.simulate.acceptance import FloatArray
from sglang_adaptive.lab.simulate.population import IntArray
from sglang_adaptive.lab.simulate.real.serve import Served
from sglang_adaptive.lab.simulate.real.work import Work


class FixedSteps:
    """A closed loop at one fixed number of steps, on whatever round times."""

    def __init__(self, work: Work, steps: int) -> None:
        assert work.arrivals is None, "with arrivals, who decodes together depends on the round times"
        self.work, self.steps = work, steps
        self.rounds, _ = work.texts.walk(work.begin, work.end, steps)
        """Rounds that each request takes."""
        self._begun, self._length = _turns(self.rounds.tolist(), work.most)
        self._tokens = self._tokens_by_then()

    def served(self, table: FloatArray) -> Served:
        """Return the run with the round times of *table*, seconds by batch size and steps."""
        each = float(table[self.work.most, self.steps])
        ends = self._begun + self.rounds
        done = np.where(ends <= self._length, ends, np.nan)
        return Served(
            np.full(self._length, self.steps),
            np.asarray(np.arange(1, self._length + 1) * each, dtype=float),
            self._tokens,
            np.where(self._begun < self._length, self._begun, np.nan) * each,
            done * each,
        )

    def _tokens_by_then(self) -> int:
        most = np.clip(self._length - self._begun, 0, None)
        whole = most >= self.rounds
        cut = ~whole
        begin, end = self.work.begin[cut], self.work.end[cut]
        _, reached = self.work.texts.walk(begin, end, self.steps, most[cut])
        return int(self.work.lengths[whole].sum() + (reached - begin).sum())


def _turns(rounds: Sequence[int], slots: int) -> tuple[IntArray, int]:
    """Return the round before which each request begins, and the rounds until a slot stays empty."""
    free = [0] * slots
    begun = []
    for length in rounds:
        begun.append(free[0])
        heapq.heapreplace(free, free[0] + length)
    return np.array(begun, dtype=np.int64), free[0]
