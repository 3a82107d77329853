"""A grammar of outlines beside a request without one, on SGLang's scheduler in this process.

Run as a process, with a folder and one of SETUPS; it prints the outputs and the steps of the rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import TIERS, Stepped

GRAMMAR = r"( hens\n[0-9]{4} brown){1,3}!"
OUTLINES = ("--grammar-backend", "outlines", "--disable-overlap-schedule")
_DRAFT = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", models.draft_path())
_FIXED = (
    *_DRAFT,
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-steps",
    "3",
    "--speculative-num-draft-tokens",
    "4",
)
SETUPS: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "none": (None, OUTLINES),
    "static": (None, (*_FIXED, *OUTLINES)),
    "adaptive": ({"1": {"candidate_steps": TIERS}}, (*_DRAFT, *OUTLINES)),
}


def main() -> None:
    folder, setup = sys.argv[1:]
    config, more = SETUPS[setup]
    lab = Stepped(Path(folder), config, *more)
    steps: list[tuple[bool, int]] = []
    if lab.controller is not None:
        learn = lab.controller.verified

        def told(counts: list[int], batch_size: int, note: Any) -> None:
            steps.append(("g" in note.requests, note.steps))
            learn(counts, batch_size, note)

        lab.controller.verified = told
        lab.force(TIERS[-1])

    def turn() -> bool:
        if not lab.reqs:
            text = "6024 brown hens\n6025 brown"
            lab.ask("g", lab.encode(text), 60, regex=GRAMMAR, ignore_eos=False)
            lab.ask("a", lab.encode(text), 120)
        return lab.done()

    lab.play(turn, overlap=False)
    outputs = {rid: list(req.output_ids_through_stop) for rid, req in lab.reqs.items()}
    print(json.dumps({"outputs": outputs, "steps": steps}))


if __name__ == "__main__":
    main()
