"""A forced verify budget on SGLang's scheduler in this process: outputs must not depend on the budget.

Run as a process; prints the outputs of each run or, with further server arguments, of one run with them. *drafts* of a
run are the draft's proposals by request and position: if two runs have a round at the same place, a draft that lost
keys, values or hidden states would propose something else. *often* are outputs of a few sampled tokens, without drafts
and with a budget.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ["SGLANG_ADAPTIVE_VERIFY_BUDGET"] = "1"  # must be set for the hooks to be installed

import torch

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing
from tests.engine.stepping import Stepper, no_memory

ALL = 99
"""A budget above any depth: rectangles."""
GRAMMAR = 'root ::= ("yes" | "no") (" " [a-z]{1,6}){4,12} "."'
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("grammar", {"ebnf": GRAMMAR}),
    ("biased", {"logit_bias": {"40": 4.0, "50": -100.0}}),
    # Uses the sampling kernel with only the most likely token in its distribution.
    ("sampled", {"temperature": 1.0, "top_p": 1e-6}),
    ("logprobs", {}),
    ("left", {}),
    ("long", {}),
]
"""One request each, arriving three turns after the previous one."""
TOKENS = 60
SAMPLES, SAMPLED = 200, 5
"""Outputs whose tokens are counted, and tokens of each."""
LEFT_AFTER = 20
"""Tokens after which the client of "left" disconnects."""


class BudgetStepper(Stepper):
    """A scheduler whose rounds verify at most a budget."""

    def run_with(self, budget: int, depths: Sequence[int], overlap: bool = True) -> dict[str, Any]:
        """Run the requests of KINDS with each of *depths* in turn, one turn each."""
        packed = self.round.budgets
        assert packed is not None, "rounds are not packed"
        packed._budget, before = lambda: budget, packed.rounds
        lengths: list[list[int]] = []
        of = Packing.of

        def noted(*args: Any) -> Packing:
            packing = of(*args)
            lengths.append(packing.lengths.tolist())
            return packing

        firsts: list[float] = []
        note = packed.note_drafts

        def told(chances: Any) -> None:
            firsts.extend(chances[:, 0].tolist())
            note(chances)

        with mock.patch.object(Packing, "of", noted), mock.patch.object(packed, "note_drafts", told):
            found = self.run(lambda _: self._arrive(depths), every=8, overlap=overlap)
        logprobs = self.reqs["logprobs"].logprob.output_token_logprobs_val
        return {
            "budget": budget,
            "outputs": found["outputs"],
            "retracted": sum(req.retraction_count for req in self.reqs.values()),
            "drafts": found["drafts"],
            "free_slots": found["free_slots"],
            "logprobs": logprobs[:TOKENS],
            "packed": packed.rounds - before,
            "lengths": lengths,
            "firsts": firsts,
        }

    def _arrive(self, depths: Sequence[int]) -> Any:
        """Let the requests of KINDS arrive; without *depths* the policy chooses."""
        turns = itertools.cycle(depths or [None])
        for index, (name, sampling) in enumerate(KINDS):
            text = " ".join(models.prompts("easy")[8:12]) if name == "long" else models.prompts("easy")[index]
            # A unique first token identifies the request in the log of drafts.
            self.ask(name, [100 + index, *self.encode(text)], TOKENS, logprobs=name == "logprobs", **sampling)
            for _ in range(3):
                self.controller.force_steps(next(turns))
                yield
        left = False
        with no_memory():
            while not self.done():
                if not left and self.verified("left") >= LEFT_AFTER:
                    self.abort("left")
                    left = True
                self.controller.force_steps(next(turns))
                yield

    def often(self, budget: int, depth: int) -> list[list[int]]:
        """Return the outputs of SAMPLES requests with one prompt, sampled at a high temperature."""
        packed = self.round.budgets
        assert packed is not None
        packed._budget = lambda: budget
        ids = self.encode(models.prompts("easy")[0])

        def ask() -> Any:
            self.force(depth)
            for index in range(SAMPLES):
                self.ask(str(index), ids, SAMPLED, temperature=2.0)
            while not self.done():
                yield

        return list(self.run(lambda _: ask(), every=8)["outputs"].values())


def main() -> None:
    folder, *more = sys.argv[1:]
    # Many requests at once, for the outputs whose tokens are counted.
    lab = BudgetStepper(Path(folder), "EAGLE3", None, "--max-running-requests", "50", *more)
    torch.manual_seed(0)
    switched: dict[str, Any] = lab.run_with(2, (7, 7, 3, 0, 1))
    if more:
        print(json.dumps({"switched": switched}))
        return
    found: dict[str, Any] = {
        "rectangles": lab.run_with(ALL, (7,)),
        "runs": [lab.run_with(1, (7,)), lab.run_with(2, (7,), overlap=False), switched],
        "often": [lab.often(ALL, 0), lab.often(1, 3)],
    }
    with mock.patch.object(Packing, "cut", lambda *_: None):
        found |= {"uncut": lab.run_with(2, (7,)), "uncut_often": lab.often(1, 3)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
