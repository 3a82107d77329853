"""Mixed batches with grammars on SGLang's scheduler in this process: requests join while others decode.

Run as a process; prints what each run wrote, which has to be the same in both loops and at all depths.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.serve_cpu import default_arguments
from tests.engine import stepping

GRAMMAR = 'root ::= ("yes" | "no") (" " [a-z]{1,6}){2,9} "."'
ARRIVALS = {0: GRAMMAR, 1: None, 3: GRAMMAR, 4: GRAMMAR, 7: None, 9: GRAMMAR}
"""By turn: the grammar of the request that arrives."""
TOKENS = 30


class MixedStepper(stepping.Stepper):
    """One scheduler whose prefills take running requests along."""

    def __init__(self, folder: Path) -> None:
        stepping._make_cpu_fit()
        config = folder / "stepping.json"
        config.write_text(json.dumps({"1": {"candidate_steps": stepping.TIERS}}))
        argv = [
            *("--model-path", str(models.target_path()), "--speculative-algorithm", "EAGLE3"),
            *("--speculative-draft-model-path", str(models.draft_path()), "--speculative-eagle-topk", "1"),
            *("--speculative-adaptive-config", str(config), "--max-total-tokens", str(stepping.SLOTS)),
            *("--chunked-prefill-size", "64", "--max-running-requests", "8", "--enable-mixed-chunk"),
        ]
        self.scheduler = stepping._scheduler([*argv, *default_arguments(argv)])
        self.scheduler._war_barrier_enabled = False
        self.controller = self.scheduler.draft_worker.adaptive_controller
        self.reqs: dict[str, Any] = {}

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with one of *depths* after the other, a turn each."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        self.scheduler.enable_overlap = overlap
        assert self.scheduler.flush_cache()
        self.reqs.clear()
        turns, turn, mixed = itertools.cycle(depths), itertools.count(), 0
        mix = ScheduleBatch.mix_with_running

        def counted(batch: Any, running: Any) -> None:
            nonlocal mixed
            mixed += any(req.grammar for req in running.reqs)
            mix(batch, running)

        def ingest(**_: Any) -> list[Any]:
            now = next(turn)
            self.force(next(turns))
            if now in ARRIVALS:
                text = models.prompts("easy")[len(self.reqs)]
                self.ask(str(now), self.encode(text), TOKENS, ebnf=ARRIVALS[now])
            self.scheduler.gracefully_exit = now > max(ARRIVALS) and self.done()
            return []

        self.scheduler.ingest_requests = ingest
        self.scheduler.gracefully_exit = False
        with mock.patch.object(ScheduleBatch, "mix_with_running", counted):
            (self.scheduler.event_loop_overlap if overlap else self.scheduler.event_loop_normal)()
        self.scheduler.last_batch = None
        return {
            "outputs": {rid: list(req.output_ids_through_stop) for rid, req in self.reqs.items()},
            "aborted": sum(req.finished_reason.to_json()["type"] == "abort" for req in self.reqs.values()),
            "mixed": mixed,
        }


def main() -> None:
    lab = MixedStepper(Path(sys.argv[1]))
    runs = [lab.write((3,), False), lab.write((3,), True), lab.write((0, 7, 1, 0), True)]
    lab.scheduler.is_disable_overlap_for_batch = lambda batch, last_batch: False  # SGLang's answer for these batches
    print(json.dumps({"runs": runs, "stock": lab.write((3,), True)}))


if __name__ == "__main__":
    main()
