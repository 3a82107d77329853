"""Conversations whose turns reuse the prefix cache of a nearly full pool, on SGLang's scheduler in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import EAGLE3, TIERS, Stepped

CONVERSATIONS, TURNS, AT_ONCE = 6, 3, 4
ASKED, ANSWERED = 20, 24
"""Tokens that each turn adds: of the user, and of the answer."""
ALL = CONVERSATIONS * TURNS * (ASKED + ANSWERED)
"""Tokens of all conversations."""
LAUNCH = 3

_STEPS = (*EAGLE3, "--speculative-num-steps", str(LAUNCH))
SETUPS: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "none": (None, ()),
    "static": (None, (*_STEPS, "--speculative-num-draft-tokens", str(LAUNCH + 1))),
    "lookups": ({"throughput": {"candidate_steps": TIERS, "lookup": True}, "warm_up": False}, _STEPS),
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
            "outputs": self.outputs(),
        }


def run(folder: Path, setup: str, pool: str, *held: str) -> list[dict[str, Any]]:
    """Return what each loop found, only the first without drafts, at the steps to hold, if any.

    That is the share of later prompts that came from the cache, the tokens that it has in the end, and every answer.
    """
    lab = Conversations(folder, setup, int(pool))
    loops = (False,) if setup == "none" else (False, True)
    return [lab.talk(overlap, int(held[0]) if held else None) for overlap in loops]
