"""Lookups on SGLang's scheduler in this process, round by round: see `without_servers/test_stepped_lookups.py`.

Run as a process: ``python -m tests.engine.lookup_steps FOLDER SETUP``, with one of SETUPS. It prints the outputs and
rounds of each script, and every round's report on lookups.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.policy.throughput import lookups as choice
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import current
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds
from sglang_adaptive.sglang_plugin.stages.lookups.texts import Texts
from tests.engine.stepping import TIERS, Stepped, no_memory

LOOPS = {"overlap": True, "normal loop": False}
JOINING = "cdefghij"
"""Requests that join two others for a while."""
COPIED = 48
"""New tokens of a prompt that already contains them, or nearly."""
SMALL_POOL = 560
"""Too few slots for four requests together. With a prefix cache, which would lose them, no lookup round gets any."""
LARGE_POOL = 16384
SETUPS: dict[str, tuple[str, ...]] = {
    "pages of 1": (
        *("--speculative-algorithm", "EAGLE3", "--max-total-tokens", str(LARGE_POOL), "--max-running-requests", "10"),
    ),
    "pages of 4": ("--speculative-algorithm", "EAGLE3", "--page-size", "4"),
    "STANDALONE": ("--speculative-algorithm", "STANDALONE"),
    "pool": ("--speculative-algorithm", "EAGLE3", "--max-total-tokens", str(SMALL_POOL), "--disable-radix-cache"),
}


class LookupStepper(Stepped):
    """A scheduler whose policy may use lookups."""

    def __init__(self, folder: Path, *more: str) -> None:
        draft = models.target_path() if "STANDALONE" in more else models.draft_path()
        config = {"throughput": {"candidate_steps": TIERS, "lookup": True, "lookup_memory_mb": 1}, "warm_up": False}
        drafting = ("--speculative-eagle-topk", "1", "--speculative-draft-model-path", draft)
        choice.Lookups.rests = False  # type: ignore[method-assign, assignment]  # track text in every round here
        super().__init__(folder, config, *drafting, *more)
        now = current()
        assert now is not None
        (self.lookups,) = now.of(LookupRounds)
        self.lookups._remembers = False  # except where a script asks for it
        self.rounds: list[dict[str, Any]] = []
        self._log_rounds()

    def run(self, script: Callable[[LookupStepper], Iterator[None]], overlap: bool) -> dict[str, Any]:
        self.force(None)
        self.rounds.clear()
        steps = script(self)
        self.play(lambda: next(steps, "end") == "end", overlap)
        return {
            "outputs": self.outputs(),
            "prompts": {rid: list(req.origin_input_ids) for rid, req in self.reqs.items()},
            "rounds": list(self.rounds),
            "retracted": self.retractions(),
            "free_slots": self.free_slots(),
        }

    def _log_rounds(self) -> None:
        learn = self.controller.verified

        def told(counts: list[int], batch_size: int, note: RoundNote) -> None:
            self.rounds.append(
                {
                    "steps": note.steps,
                    "requests": list(note.requests),
                    "counts": list(counts),
                    "lookups": [list(found) for found in note.lookups],
                    "shadow_accepts": list(note.shadow_accepts),
                }
            )
            learn(counts, batch_size, note)

        self.controller.verified = told


Script = Callable[[LookupStepper], Iterator[None]]


def copied(lab: LookupStepper, index: int) -> list[int]:
    """Return a prompt that contains a text twice and starts it again."""
    text = lab.encode(models.prompts("easy")[index])[:40]
    return [100 + index, *text, *text, *text[: len(text) // 3]]


def cycle(*depths: int | None) -> Script:
    """Two requests that copy, and one that joins with other text, at each of *depths* in turn, one turn each."""

    def script(lab: LookupStepper) -> Iterator[None]:
        turns = itertools.cycle(depths)
        lab.ask("a", copied(lab, 0), COPIED)
        lab.ask("b", copied(lab, 1), COPIED)
        for turn in itertools.count():
            lab.force(next(turns))
            if turn == 5:
                lab.ask("c", lab.encode(models.prompts("hard")[0])[:50], 30)
            if turn > 5 and lab.done():
                return
            yield

    return script


def crowd(*depths: int | None) -> Script:
    """Two requests, ten for a while, one of which is aborted, then the two again."""

    def script(lab: LookupStepper) -> Iterator[None]:
        turns = itertools.cycle(depths)
        for index, name in enumerate("ab"):
            lab.ask(name, copied(lab, index), 90)
        for turn in itertools.count():
            lab.force(next(turns))
            if turn == 6:
                for index, name in enumerate(JOINING):
                    lab.ask(name, copied(lab, 2 + index), 24)
            if turn == 9:
                lab.abort("d")
            if turn > 9 and lab.done(*{*"ab", *JOINING} - {"d"}):
                return
            yield

    return script


def remembering(lab: LookupStepper) -> Iterator[None]:
    """A prompt again and again: after it, with another key, after a flush, and beside it; one is aborted before."""
    lab.force(31)
    lab.lookups._remembers = True
    prompts = [lab.encode(models.prompts("easy")[index])[:70] for index in (5, 6)]
    for name, prompt in (("first", 0), ("second", 0), ("keyed", 0), ("aborted", 1), ("after", 1), ("flushed", 0)):
        if name == "flushed":
            assert lab.scheduler.flush_cache()
        lab.ask(name, prompts[prompt], 60)
        lab.reqs[name].extra_key = "another" if name == "keyed" else None
        for turn in itertools.count():
            if name == "aborted" and turn == 6:
                lab.abort(name)
            if lab.done(name) or turn == 40:
                break
            yield
        for _ in range(3):  # until the scheduler is idle
            yield
    assert lab.scheduler.flush_cache()
    lab.ask("ahead", prompts[1], 60)
    for turn in itertools.count():
        if turn == 6:
            lab.ask("behind", prompts[1], 60)
        if turn > 6 and lab.done("ahead", "behind"):
            break
        yield
    lab.lookups._remembers = False


def with_grammar(lab: LookupStepper) -> Iterator[None]:
    lab.force(31)
    lab.ask("a", copied(lab, 0), COPIED)
    lab.ask("g", copied(lab, 1), 30, regex="(ab|cd){3,20}x", ignore_eos=False)
    while not lab.done():
        yield


def full_pool(*depths: int | None, retract: bool = False) -> Script:
    """Four requests that do not fit together; *retract* retracts one."""

    def script(lab: LookupStepper) -> Iterator[None]:
        turns = itertools.cycle(depths)
        for index, name in enumerate("abcd"):
            lab.ask(name, copied(lab, index), 80)
        for turn in itertools.count():
            if lab.done():
                return
            lab.force(next(turns))
            with no_memory() if retract and turn >= 8 and not lab.retractions() else nullcontext():
                yield

    return script


SCRIPTS: dict[str, Script] = {
    "0 steps": cycle(0),
    "31 lookups": cycle(31),
    "switching": cycle(31, 0, 3, 15, 7, 31, 31, 0, 0, 15, 1),
    "policy": cycle(None),
}
CROWDS: dict[str, Script] = {
    "0 steps": crowd(0),
    "8 lookups": crowd(8),
    "switching": crowd(31, 3, 8, 0, 15, 8, 31, 7),
    "policy": crowd(None),
}
POOLS: dict[str, Script] = {
    "0 steps": full_pool(0, retract=True),
    "31 lookups": full_pool(31, retract=True),
    "policy": full_pool(None),
}


SHADOWS: dict[str, Script] = {"1 step": cycle(1), "0 steps after 31 lookups": cycle(31, 0)}


def reasons(lab: LookupStepper) -> dict[str, Any]:
    """Return the messages for workers that cannot use lookups."""
    changes: dict[str, Any] = {
        "sparse attention": mock.patch.object(lab.worker._draft_worker, "seed_dsa_topk_from_draft_extend", True),
        "latent attention": mock.patch.object(lab.worker._target_worker.model_runner, "use_mla_backend", True),
    }
    found = {}
    for name, change in changes.items():
        with change:
            found[name] = features.why_not("lookups", Setup.of(lab.worker))
    found["none"] = features.why_not("lookups", Setup.of(lab.worker))
    return found


def fault(lab: LookupStepper) -> dict[str, Any]:
    """Return the results of a fault in the middle of a run; nothing is looked up afterwards."""
    follow, calls = Texts.follow, itertools.count(1)

    def failing(texts: Texts, *args: Any) -> Any:
        if next(calls) == 6:
            raise RuntimeError("planted")
        return follow(texts, *args)

    with mock.patch.object(Texts, "follow", failing):
        ran = lab.run(cycle(31), overlap=True)
    policy = lab.controller.policy
    candidates = [*policy.candidate_steps, *policy.lookup_kinds]
    return {**ran, "error": lab.lookups.guard.error, "candidates": candidates, "calls": next(calls)}


def played(lab: LookupStepper, scripts: dict[str, Script], loops: Sequence[str]) -> dict[str, Any]:
    return {
        f"{name}, {loop}": lab.run(script, LOOPS[loop])
        for (name, script), loop in itertools.product(scripts.items(), loops)
    }


def main() -> None:
    folder, setup = Path(sys.argv[1]), sys.argv[2]
    lab = LookupStepper(folder, *SETUPS[setup])
    found: dict[str, Any] = {"tiers": lab.controller.states.tiers, "launch": lab.controller.states.launch.steps}
    if setup == "pool":
        found["scripts"] = played(lab, POOLS, ["overlap"])
    elif setup != "pages of 1":
        found["scripts"] = played(lab, {name: SCRIPTS[name] for name in ("0 steps", "switching")}, ["overlap"])
        if setup == "pages of 4":
            found["memory"] = played(lab, {"memory": remembering}, list(LOOPS))
    else:
        found["scripts"] = played(lab, SCRIPTS, ["overlap"]) | played(
            lab, {"0 steps": cycle(0), "switching": SCRIPTS["switching"]}, ["normal loop"]
        )
        with mock.patch.object(choice.Lookups, "rests", True):
            found["scripts"] |= played(lab, {"31 lookups while tracking rests": cycle(31)}, ["overlap"])
        found["crowds"] = played(lab, CROWDS, ["overlap"])
        found["shadows"] = played(lab, SHADOWS, list(LOOPS))
        found["grammar"] = lab.run(with_grammar, overlap=True)
        found["reasons"] = reasons(lab)
        found["fault"] = fault(lab)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
