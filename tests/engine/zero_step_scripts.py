"""Scripts, round by round, for the tests of zero steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.runtime.pending_drafts import MOST_WRITES
from sglang_adaptive.sglang_plugin.stages.fast_path import kv_only
from sglang_adaptive.sglang_plugin.stages.zero_steps import deferred_draft_extend
from tests.engine.stepping import Script, Stepper, no_memory

EASY = models.prompts("easy")


def prompt(lab: Stepper, index: int, length: int = 24) -> list[int]:
    """Return a prompt with a unique first token, which identifies it in the log of drafts."""
    ids = lab.encode(EASY[index])
    return [100 + index, *ids[: length - 1]]


def resume(at_zero: int) -> Script:
    """One request: four deep rounds, then *at_zero* zero-step rounds, twice; then a few deep ones."""

    def script(lab: Stepper) -> Iterator[None]:
        lab.force(7)
        lab.ask("a", prompt(lab, 0), 2 * at_zero + lab.tokens_of(rounds=10, steps=7))
        for _ in range(2):
            for _ in range(4):
                yield
            lab.force(0)
            for _ in range(at_zero):
                yield
            lab.force(7)
        while not lab.done():
            yield

    return script


def come_and_go(lab: Stepper) -> Iterator[None]:
    """Requests join, finish and are aborted while others owe rows; drafting resumes now and then."""
    lab.force(0)
    lab.ask("a", prompt(lab, 0), 60)
    for _ in range(4):
        yield
    lab.ask("b", prompt(lab, 1, 100), 5)  # several prefill chunks; ends at zero steps
    for _ in range(6):
        yield
    lab.ask("c", prompt(lab, 2), 70)
    lab.ask("d", prompt(lab, 3), 70)
    for _ in range(7):
        yield
    lab.force(3)
    yield
    lab.abort("d")
    yield
    lab.force(0)
    lab.ask("e", prompt(lab, 4), 30)
    for _ in range(5):
        yield
    lab.abort("c")
    for _ in range(2):
        yield
    lab.force(1)
    for _ in range(2):
        yield
    lab.force(0)
    for _ in range(3):
        yield
    lab.force(7)
    while not lab.done():
        yield


def second_turn(answer: int) -> Script:
    """A request answers *answer* tokens at zero steps; the next prompt is all of that and a little more."""

    def script(lab: Stepper) -> Iterator[None]:
        lab.force(0)
        first = prompt(lab, 5)
        lab.ask("a", first, answer)
        while not lab.done():
            yield
        lab.force(7)
        lab.ask("b", [*first, *lab.reqs["a"].output_ids, *prompt(lab, 6)[1:6]], 32)
        while not lab.done():
            yield

    return script


def second_turn_after_an_abort(lab: Stepper) -> Iterator[None]:
    """The same, but the answer is cut off: with overlap, while one of its rounds is in flight."""
    lab.force(0)
    first = prompt(lab, 5)
    lab.ask("a", first, 60)
    while lab.verified("a") < 21:
        yield
    lab.abort("a")
    while not lab.done():
        yield
    lab.force(7)
    lab.ask("b", [*first, *lab.reqs["a"].output_ids, *prompt(lab, 6)[1:6]], 32)
    while not lab.done():
        yield


def leave_early(lab: Stepper) -> Iterator[None]:
    """One request is aborted and one stops before the draft sees any of their tokens; a third continues the first.

    With overlap, a round of each is still in flight. By then the prefix cache has all but the last prompt token.
    """
    lab.force(0)
    first = prompt(lab, 5)
    lab.ask("a", first, 60)
    while lab.verified("a") < 2:
        yield
    lab.abort("a")
    while not lab.done():
        yield
    lab.ask("b", first, 60, ignore_eos=False, stop_token_ids=[lab.reqs["a"].output_ids[1]])
    while not lab.done():
        yield
    lab.force(7)
    lab.ask("c", [*first, *lab.reqs["a"].output_ids, *prompt(lab, 6)[1:6]], 32)
    while not lab.done():
        yield


def two_at_zero(lab: Stepper) -> None:
    lab.force(0)
    lab.ask("a", prompt(lab, 7), 48)
    lab.ask("b", prompt(lab, 8), 48)


def retract(lab: Stepper) -> Iterator[None]:
    """The scheduler retracts a running request, which comes back through a new prefill."""
    two_at_zero(lab)
    for _ in range(8):
        yield
    with no_memory():
        yield
    for _ in range(9):
        yield
    lab.force(7)
    while not lab.done():
        yield


def hold_fewer(lab: Stepper) -> Iterator[None]:
    """The number of rounds to hold drops below the number already held."""
    two_at_zero(lab)
    for _ in range(7):
        yield
    lab.deferred.set_every(min(3, lab.deferred.snapshot()["extend_every"]))
    for _ in range(9):
        yield
    lab.force(7)
    while not lab.done():
        yield


SCRIPTS: dict[str, Script] = {
    **{f"resume after {rounds}": resume(rounds) for rounds in (2, 9, 32)},
    "come and go": come_and_go,
    "second turn": second_turn(22),
    "second turn after an abort": second_turn_after_an_abort,
    "leave early": leave_early,
    "retract": retract,
    "hold fewer": hold_fewer,
}
IN_BOTH_LOOPS = ("resume after 9", "come and go", "second turn")
WRITTEN = ("resume after 32", "come and go", "second turn", "retract", "hold fewer")
WRITTEN_SOON = ("come and go", "second turn")
"""With three rounds held; there, "hold fewer" would hold no fewer."""


def compare(lab: Stepper) -> list[dict[str, Any]]:
    """Run every script with an extend in every round and with held rows; return the results of each pair of runs.

    In some pairs most held rows are only written, in some half of them. Three more pairs show that drafts reveal
    faults: rows that are never extended, rows that are not written, and rows that the cache takes anyway.
    """
    pairs = [pair(lab, name, every=8) for name in SCRIPTS]
    pairs += [pair(lab, name, every=8, overlap=False) for name in IN_BOTH_LOOPS]
    pairs.append(pair(lab, "resume after 9", every=3))
    pairs += [pair(lab, name, every=8, written=MOST_WRITES) for name in WRITTEN]
    pairs += [pair(lab, name, every=3, written=MOST_WRITES) for name in WRITTEN_SOON]
    pairs.append(pair(lab, "come and go", every=8, written=MOST_WRITES, overlap=False))
    pairs += [pair(lab, name, every=8, written=1) for name in ("resume after 32", "retract")]
    with mock.patch.object(kv_only.KvOnlyBackend, "forward", side_effect=kv_only.Written):
        pairs.append(pair(lab, "come and go", every=8, written=MOST_WRITES, fault="never written"))
    deferred = lab.deferred
    with mock.patch.object(deferred, "_run", lambda *_, **__: deferred._pending.settle() or deferred._held.clear()):
        pairs.append(pair(lab, "retract", every=8, fault="never extended"))
    with mock.patch.object(deferred, "kept_length", lambda owned, req: owned):
        pairs.append(pair(lab, "second turn", every=8, fault="cached all the same"))
    return pairs


def pair(
    lab: Stepper, name: str, *, every: int, overlap: bool = True, written: int = 0, fault: str | None = None
) -> dict[str, Any]:
    """Between two extends, held rows are only written *written* times."""
    how = f"every {every}, {'overlap' if overlap else 'normal'} loop, written {written} times"
    with mock.patch.object(deferred_draft_extend, "extend_schedule", lambda requests, every, curious: (every, written)):
        held = lab.run(SCRIPTS[name], every=every, overlap=overlap)
    return {
        "name": f"{name}, {how}",
        "script": name,
        "every": every,
        "written": written,
        "fault": fault,
        "wanted": _every_round(lab, name, overlap),
        "held": held,
    }


_known: dict[tuple[str, bool], dict[str, Any]] = {}


def _every_round(lab: Stepper, name: str, overlap: bool) -> dict[str, Any]:
    if (name, overlap) not in _known:
        _known[name, overlap] = lab.run(SCRIPTS[name], every=1, overlap=overlap)
    return _known[name, overlap]
