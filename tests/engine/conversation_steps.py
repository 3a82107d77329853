"""Conversations whose turns reuse the prefix cache of a nearly full pool, on SGLang's scheduler in this process.

Run as a process, with a folder, one of SETUPS, the pool's slots, and the steps to hold, if any. For each loop, only the
first without drafts, it prints the share of later prompts that came from the cache, the tokens that it has in the end,
and every answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import Stepped

CONVERSATIONS, TURNS, AT_ONCE = 6, 3, 4
ASKED, ANSWERED = 20, 24
"""Tokens that each turn adds: of the user, and of the answer."""
ALL = CONVERSATIONS * TURNS * (ASKED + ANSWERED)
"""Tokens of all conversations."""
LAUNCH = 3
LADDER = [0, 1, 3, 7]

_DRAFT = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", models.draft_path())
_STEPS = (*_DRAFT, "--speculative-eagle-topk", "1", "--speculative-num-steps", str(LAUNCH))
SETUPS: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "none": (None, ()),
    "static": (None, (*_STEPS, "--speculative-num-draft-tokens", str(LAUNCH + 1))),
    "lookups": ({"throughput": {"candidate_steps": LADDER, "lookup": True}, "warm_up": False}, _STEPS),
}


class Conversations(Stepped):
    """A scheduler that serves CONVERSATIONS, AT_ONCE at a time, all first turns first."""

    SKIPS_ROUNDS = True

    def __init__(self, folder: Path, setup: str, pool: int) -> None:
        config, more = SETUPS[setup]
        sizes = ("--max-total-tokens", str(pool), "--max-running-requests", str(AT_ONCE))
        super().__init__(folder, config, *more, *sizes)

    def talk(self, overlap: bool, held: int | None) -> dict[str, Any]:
        """Serve all turns; *held* are the steps of every round, None for the policy's."""
        if self.controller is not None:
            self.controller.force_steps(held)
        prompts = [text for kind in ("easy", "hard") for text in models.prompts(kind)]
        words = self.encode(" ".join(prompts))
        waiting = [(turn, one) for turn in range(TURNS) for one in range(CONVERSATIONS)]
        history: dict[int, list[int]] = {}
        asked: dict[str, int] = {}
        running: dict[str, int] = {}

        def step() -> bool:
            for rid in [rid for rid in running if self.done(rid)]:
                history[running.pop(rid)].extend(self.reqs[rid].output_ids_through_stop)
            while waiting and len(running) < AT_ONCE and waiting[0][1] not in running.values():
                turn, one = waiting.pop(0)
                place = (one * TURNS + turn) * ASKED
                history.setdefault(one, []).extend(words[place : place + ASKED])
                rid = f"{turn} {one}"
                asked[rid], running[rid] = len(history[one]), one
                self.ask(rid, list(history[one]), ANSWERED)
            return not waiting and not running

        self.play(step, overlap)
        later = [rid for rid in asked if not rid.startswith("0 ")]
        cached = sum(self.reqs[rid].cached_tokens for rid in later)
        return {
            "overlap": overlap,
            "share": cached / sum(asked[rid] for rid in later),
            "kept": int(self.scheduler.tree_cache.evictable_size()),
            "outputs": {rid: list(req.output_ids_through_stop) for rid, req in self.reqs.items()},
        }


def main() -> None:
    folder, setup, pool, *held = sys.argv[1:]
    lab = Conversations(Path(folder), setup, int(pool))
    loops = (False,) if setup == "none" else (False, True)
    print(json.dumps([lab.talk(overlap, int(held[0]) if held else None) for overlap in loops]))


if __name__ == "__main__":
    main()
