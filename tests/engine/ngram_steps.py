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
from sglang_adaptive.serve_cpu import default_arguments
from tests.engine import stepping

WIDTHS = (0, 2, 5, 11)
ARRIVALS = {0: ("a", 90), 4: ("b", 5), 9: ("c", 70), 10: ("d", 70)}
"""By turn: who arrives, and for how many tokens."""
ABORTED = ("d", 14)


class NgramStepper(stepping.Stepper):
    """One scheduler whose worker drafts from a corpus."""

    def __init__(self, folder: Path) -> None:
        stepping._make_cpu_fit()
        config = folder / "stepping.json"
        config.write_text(json.dumps({"throughput": {"candidate_steps": list(WIDTHS)}}))
        argv = [
            *("--model-path", models.target_path(), "--speculative-algorithm", "NGRAM"),
            *("--speculative-adaptive-config", str(config), "--max-total-tokens", str(stepping.SLOTS)),
            *("--chunked-prefill-size", "64", "--max-running-requests", "8", "--enable-return-hidden-states"),
        ]
        self.scheduler = stepping._scheduler([*argv, *default_arguments(argv)])
        self.scheduler._war_barrier_enabled = False
        self.worker = self.scheduler.draft_worker
        self.controller = self.worker.adaptive_controller
        self.reqs: dict[str, Any] = {}
        self._hidden_states: dict[str, torch.Tensor] = {}

    def write(self, widths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with one of *widths* after the other, a turn each."""
        self.scheduler.enable_overlap = self.worker.enable_overlap = overlap
        self.scheduler.enable_skip_finishing_decode = False
        assert self.scheduler.flush_cache()
        self.reqs.clear()
        before = self.controller.snapshot().rounds_by_tier
        turns, turn = itertools.cycle(widths), itertools.count()

        def ingest(**_: Any) -> list[Any]:
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
            self.scheduler.gracefully_exit = now > max(ARRIVALS) + 4 and self.done()
            return []

        self.scheduler.ingest_requests = ingest
        self.scheduler.gracefully_exit = False
        (self.scheduler.event_loop_overlap if overlap else self.scheduler.event_loop_normal)()
        self.scheduler.last_batch = None
        after, pool = self.controller.snapshot(), self.scheduler.token_to_kv_pool_allocator
        whole = [(name, req) for name, req in self.reqs.items() if name != ABORTED[0]]
        return {
            "outputs": {name: list(req.output_ids_through_stop) for name, req in whole},
            "hidden_states_differ_by": max(self._differ_by(name, req) for name, req in whole),
            "ran": [tier for tier, n in after.rounds_by_tier.items() if n > before.get(tier, 0)],
            "accepted": sum(after.accepted_by_tier.values()),
            "degraded": after.degraded,
            "free_slots": pool.available_size() + self.scheduler.tree_cache.evictable_size(),
        }

    def _differ_by(self, name: str, req: Any) -> float:
        """Return how far the hidden states of *req*'s output are from those of the first run, relatively."""
        written = [row for row in req.hidden_states if not isinstance(row[0], list)]  # lists of rows are a prompt's
        found = torch.tensor(written[: len(req.output_ids_through_stop) - 1])
        first = self._hidden_states.setdefault(name, found)
        return float((found - first).norm(dim=1).max() / first.norm(dim=1).min())


def main() -> None:
    lab = NgramStepper(Path(sys.argv[1]))
    ladders = ((0,), (11,), WIDTHS, (11, 0), (5, 5, 2, 2, 2, 0))
    print(json.dumps([lab.write(widths, overlap) for overlap in (False, True) for widths in ladders]))


if __name__ == "__main__":
    main()
