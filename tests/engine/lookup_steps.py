"""Lookups on SGLang's scheduler in this process, round by round: see `without_servers/test_stepped_lookups.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
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
from tests.engine.stepping import TIERS, Stepped, no_memory, turns

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
        self.hear(self._log_round)

    def run(self, script: Script, depths: Sequence[int | None], overlap: bool) -> dict[str, Any]:
        """Run *script* with each of *depths* in turn, one turn each; None is the policy's choice."""
        self.rounds.clear()
        steps = script(self)
        self.play_depths(depths, overlap, lambda turn: next(steps, "end") == "end")
        return {
            "outputs": self.outputs(),
            "prompts": {rid: list(req.origin_input_ids) for rid, req in self.reqs.items()},
            "rounds": list(self.rounds),
            "retracted": self.retractions(),
            "free_slots": self.free_slots(),
        }

    def _log_round(self, counts: list[int], batch_size: int, note: RoundNote) -> None:
        self.rounds.append(
            {
                "steps": note.steps,
                "requests": list(note.requests),
                "counts": list(counts),
                "lookups": [list(found) for found in note.lookups],
                "shadow_accepts": list(note.shadow_accepts),
            }
        )


Script = Callable[[LookupStepper], Iterator[None]]


def copied(lab: LookupStepper, index: int) -> list[int]:
    """Return a prompt that contains a text twice and starts it again."""
    text = lab.encode(models.prompts("easy")[index])[:40]
    return [100 + index, *text, *text, *text[: len(text) // 3]]


def copying(lab: LookupStepper) -> Iterator[None]:
    """Two requests that copy, and one that joins with other text."""
    lab.ask("a", copied(lab, 0), COPIED)
    lab.ask("b", copied(lab, 1), COPIED)
    yield from turns(5)
    lab.ask("c", lab.encode(models.prompts("hard")[0])[:50], 30)
    yield from lab.rest()


def crowd(lab: LookupStepper) -> Iterator[None]:
    """Two requests, ten for a while, one of which is aborted, then the two again."""
    for index, name in enumerate("ab"):
        lab.ask(name, copied(lab, index), 90)
    yield from turns(6)
    for index, name in enumerate(JOINING):
        lab.ask(name, copied(lab, 2 + index), 24)
    yield from turns(3)
    lab.abort("d")
    yield from lab.rest(*{*"ab", *JOINING} - {"d"})


def remembering(lab: LookupStepper) -> Iterator[None]:
    """A prompt again and again: after it, with another key, after a flush, and beside it; one is aborted before."""
    lab.lookups._remembers = True
    prompts = [lab.encode(models.prompts("easy")[index])[:70] for index in (5, 6)]
    for name, prompt in (("first", 0), ("second", 0), ("keyed", 0), ("aborted", 1), ("after", 1), ("flushed", 0)):
        if name == "flushed":
            assert lab.scheduler.flush_cache()
        lab.ask(name, prompts[prompt], 60)
        lab.reqs[name].extra_key = "another" if name == "keyed" else None
        if name == "aborted":
            yield from turns(6)
            lab.abort(name)
        yield from lab.rest(name)
        yield from turns(3)  # until the scheduler is idle
    assert lab.scheduler.flush_cache()
    lab.ask("ahead", prompts[1], 60)
    yield from turns(6)
    lab.ask("behind", prompts[1], 60)
    yield from lab.rest("ahead", "behind")
    lab.lookups._remembers = False


def with_grammar(lab: LookupStepper) -> Iterator[None]:
    lab.ask("a", copied(lab, 0), COPIED)
    lab.ask("g", copied(lab, 1), 30, regex="(ab|cd){3,20}x", ignore_eos=False)
    yield from lab.rest()


def full_pool(lab: LookupStepper, retract: bool = False) -> Iterator[None]:
    """Four requests that do not fit together; *retract* retracts one."""
    for index, name in enumerate("abcd"):
        lab.ask(name, copied(lab, index), 80)
    for turn in itertools.count():
        if lab.done():
            return
        with no_memory() if retract and turn >= 8 and not lab.retractions() else nullcontext():
            yield


retracting = partial(full_pool, retract=True)
Scripts = dict[str, tuple[Script, Sequence[int | None]]]
"""Scripts with their depths."""
AT_ZERO: Scripts = {"0 steps": (copying, (0,))}
SWITCHING: Scripts = {"switching": (copying, (31, 0, 3, 15, 7, 31, 31, 0, 0, 15, 1))}
LOOKED_UP: Scripts = {"31 lookups": (copying, (31,)), "policy": (copying, (None,))}
CROWDS: Scripts = {
    "0 steps": (crowd, (0,)),
    "8 lookups": (crowd, (8,)),
    "switching": (crowd, (31, 3, 8, 0, 15, 8, 31, 7)),
    "policy": (crowd, (None,)),
}
POOLS: Scripts = {
    "0 steps": (retracting, (0,)),
    "31 lookups": (retracting, (31,)),
    "policy": (full_pool, (None,)),
}
SHADOWS: Scripts = {"1 step": (copying, (1,)), "0 steps after 31 lookups": (copying, (31, 0))}


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
        ran = lab.run(copying, (31,), overlap=True)
    policy = lab.controller.policy
    candidates = [*policy.candidate_steps, *policy.lookup_kinds]
    return {**ran, "error": lab.lookups.guard.error, "candidates": candidates, "calls": next(calls)}


def played(lab: LookupStepper, scripts: Scripts, loops: Sequence[str] = ("overlap",)) -> dict[str, Any]:
    return {
        f"{name}, {loop}": lab.run(*script, LOOPS[loop])
        for (name, script), loop in itertools.product(scripts.items(), loops)
    }


def run(folder: Path, setup: str) -> dict[str, Any]:
    """Return the outputs and rounds of each script of one of SETUPS, and every round's report on lookups."""
    lab = LookupStepper(folder, *SETUPS[setup])
    found: dict[str, Any] = {"tiers": lab.controller.states.tiers, "launch": lab.controller.states.launch.steps}
    if setup == "pool":
        return {**found, "scripts": played(lab, POOLS)}
    if setup != "pages of 1":
        found["scripts"] = played(lab, AT_ZERO | SWITCHING)
        if setup == "pages of 4":
            found["memory"] = played(lab, {"memory": (remembering, (31,))}, list(LOOPS))
        return found
    found["scripts"] = played(lab, AT_ZERO | SWITCHING, list(LOOPS)) | played(lab, LOOKED_UP)
    with mock.patch.object(choice.Lookups, "rests", True):
        found["scripts"] |= played(lab, {"31 lookups while tracking rests": (copying, (31,))})
    found["crowds"] = played(lab, CROWDS)
    found["shadows"] = played(lab, SHADOWS, list(LOOPS))
    found["grammar"] = lab.run(with_grammar, (31,), overlap=True)
    found["reasons"] = reasons(lab)
    found["fault"] = fault(lab)
    return found
