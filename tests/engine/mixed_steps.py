"""Mixed batches with grammars on SGLang's scheduler in this process: requests join while others decode.

Outputs must be the same in both loops and at all depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import EAGLE3, TIERS, Stepped

GRAMMAR = 'root ::= ("yes" | "no") (" " [a-z]{1,6}){2,9} "."'
ARRIVALS = {0: GRAMMAR, 1: None, 3: GRAMMAR, 4: GRAMMAR, 7: None, 9: GRAMMAR}
"""By turn: the grammar of the arriving request."""
TOKENS = 30


class MixedStepper(Stepped):
    """A scheduler whose prefills include running requests."""

    SKIPS_ROUNDS = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"1": {"candidate_steps": TIERS}}, *EAGLE3, "--enable-mixed-chunk")

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with each of *depths* in turn, one turn each."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        mixed, mix = 0, ScheduleBatch.mix_with_running

        def counted(batch: Any, running: Any) -> None:
            nonlocal mixed
            mixed += any(req.grammar for req in running.reqs)
            mix(batch, running)

        def step(now: int) -> bool:
            if now in ARRIVALS:
                text = models.prompts("easy")[len(self.reqs)]
                self.ask(str(now), self.encode(text), TOKENS, ebnf=ARRIVALS[now])
            return now > max(ARRIVALS) and self.done()

        with mock.patch.object(ScheduleBatch, "mix_with_running", counted):
            self.play_depths(depths, overlap, step)
        return {
            "outputs": self.outputs(),
            "aborted": sum(req.finished_reason.to_json()["type"] == "abort" for req in self.reqs.values()),
            "mixed": mixed,
        }


def run(folder: Path) -> dict[str, Any]:
    lab = MixedStepper(folder)
    runs = [lab.write((3,), False), lab.write((3,), True), lab.write((0, 7, 1, 0), True)]
    lab.scheduler.is_disable_overlap_for_batch = lambda batch, last_batch: False  # SGLang's answer for these batches
    return {"runs": runs, "stock": lab.write((3,), True)}
