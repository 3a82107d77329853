"""Frozen-KV MTP on SGLang's scheduler in this process, in both loops: a depth a turn, requests come and go.

Run as a process; prints what each run wrote, which has to be the same whatever the loop and the depths, and what it
drafted where, and what its runtime states have.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.engine import assistant
from tests.engine.stepping import Stepped

DEPTHS = (0, 1, 3, 7)
ARRIVALS = {0: ("a", 60), 4: ("b", 5), 9: ("c", 40), 10: ("d", 70)}
"""By turn: who arrives, and for how many tokens."""
ABORTED = ("d", 14)


class FrozenKvStepper(Stepped):
    """One scheduler whose draft reads the target's KV."""

    def __init__(self, folder: Path) -> None:
        target, draft = assistant.write(folder)
        drafting = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", draft)
        super().__init__(folder, {"throughput": {"candidate_steps": list(DEPTHS)}}, "--model-path", target, *drafting)
        self._log_drafts()

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with one of *depths* after the other, a turn each."""
        self.drafts.clear()
        before = self.controller.snapshot()
        ran_before = before["rounds_by_tier"]
        turns, turn = itertools.cycle(depths), itertools.count()

        def step() -> bool:
            now = next(turn)
            self.force(next(turns))
            if now in ARRIVALS:
                name, tokens = ARRIVALS[now]
                text = self.encode(models.prompts("easy")[len(self.reqs)] * (1 + now // 9))
                self.ask(name, [100 + len(self.reqs), *text], tokens)
            if now == ABORTED[1]:
                self.abort(ABORTED[0])
            return now > max(ARRIVALS) + 4 and self.done()

        self.play(step, overlap)
        after = self.controller.snapshot()
        whole = [(name, req) for name, req in self.reqs.items() if name != ABORTED[0]]
        return {
            "outputs": {name: list(req.output_ids_through_stop) for name, req in whole},
            "ran": [int(steps) for steps, n in after["rounds_by_tier"].items() if n > ran_before.get(steps, 0)],
            "accepted": sum(after["accepted_by_tier"].values()) - sum(before["accepted_by_tier"].values()),
            "drafts": [draft for draft in self.drafts if len(draft[2]) > 1],
            "degraded": after["degraded_reason"],
            "free_slots": self.free_slots(),
        }

    def built(self) -> dict[str, Any]:
        """Build a further state while the draft has a graph, switch through all, and return what the draft holds."""
        draft, runner = self.worker._draft_worker, self.worker._draft_worker.draft_model_runner
        launch = draft.draft_attn_backend
        draft.cuda_graph_runner = "of the live depth"
        further = self.worker.build_adaptive_runtime_state(5, 6)
        kept = (draft.cuda_graph_runner, draft.draft_attn_backend is launch, runner.attn_backend is launch)
        draft.cuda_graph_runner = None
        backends, in_force = [further.draft_attn_backend, further.target_attn_backend], []
        for state in self.controller.states:
            self.worker.apply_runtime_state(state)
            in_force.append(runner.attn_backend is draft.draft_attn_backend is state.draft_attn_backend)
            backends += [state.draft_attn_backend, state.target_attn_backend]
        return {
            "states": len(in_force) + 1,
            "backends": len(set(map(id, backends))),
            "in_force": all(in_force),
            "graph_of_another_depth": further.cuda_graph_runner is not None,
            "kept": kept,
        }


def main() -> None:
    lab = FrozenKvStepper(Path(sys.argv[1]))
    ladders = {False: ((0,), DEPTHS, (7, 0)), True: ((7,), DEPTHS, (3, 3, 1, 0, 0, 0, 0, 0))}
    runs = [lab.write(depths, overlap) for overlap in ladders for depths in ladders[overlap]]
    print(json.dumps({"runs": runs, "built": lab.built()}))


if __name__ == "__main__":
    main()
