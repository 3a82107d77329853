"""NGRAM on SGLang's scheduler in this process, in the overlapping loop as well: a width a turn, requests come and go.

Run as a process; prints what each run wrote, which has to be the same whatever the loop and the widths.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import Stepped

WIDTHS = (0, 2, 5, 11)
ARRIVALS = {0: ("a", 60), 4: ("b", 5), 9: ("c", 40), 10: ("d", 70)}
"""By turn: who arrives, and for how many tokens."""
ABORTED = ("d", 14)


class NgramStepper(Stepped):
    """One scheduler whose worker drafts from a corpus."""

    def __init__(self, folder: Path) -> None:
        config = {"throughput": {"candidate_steps": list(WIDTHS)}}
        super().__init__(folder, config, "--speculative-algorithm", "NGRAM", "--enable-return-hidden-states")
        self._hidden_states: dict[str, torch.Tensor] = {}

    def write(self, widths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with one of *widths* after the other, a turn each."""
        before = self.controller.snapshot()["rounds_by_tier"]
        turns, turn = itertools.cycle(widths), itertools.count()

        def step() -> bool:
            now = next(turn)
            self.force(next(turns))
            if now in ARRIVALS:
                name, tokens = ARRIVALS[now]
                self.ask(
                    name,
                    self.encode(models.prompts("easy")[len(self.reqs)] * (1 + now // 9)),
                    tokens,
                    hidden_states=True,
                )
            if now == ABORTED[1]:
                self.abort(ABORTED[0])
            return now > max(ARRIVALS) + 4 and self.done()

        self.play(step, overlap)
        after = self.controller.snapshot()
        whole = [(name, req) for name, req in self.reqs.items() if name != ABORTED[0]]
        return {
            "outputs": {name: list(req.output_ids_through_stop) for name, req in whole},
            "hidden_states_differ_by": max(self._differ_by(name, req) for name, req in whole),
            "ran": [int(steps) for steps, n in after["rounds_by_tier"].items() if n > before.get(steps, 0)],
            "accepted": sum(after["accepted_by_tier"].values()),
            "degraded": after["degraded_reason"],
            "free_slots": self.free_slots(),
        }

    def _differ_by(self, name: str, req: Any) -> float:
        """Return how far the hidden states of *req*'s output are from those of the first run, relatively."""
        written = [row for row in req.hidden_states if not isinstance(row[0], list)]  # lists of rows are a prompt's
        found = torch.tensor(written[: len(req.output_ids_through_stop) - 1])
        first = self._hidden_states.setdefault(name, found)
        return float((found - first).norm(dim=1).max() / first.norm(dim=1).min())


def main() -> None:
    lab = NgramStepper(Path(sys.argv[1]))
    ladders = {False: ((0,), WIDTHS, (11, 0)), True: ((11,), WIDTHS, (5, 5, 2, 2, 2, 0))}
    print(json.dumps([lab.write(widths, overlap) for overlap in ladders for widths in ladders[overlap]]))


if __name__ == "__main__":
    main()
