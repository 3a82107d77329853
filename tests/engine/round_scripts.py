"""Scripts, round by round, of the shipped pair: zero steps, prompts of several chunks, and times next to prefills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.runtime.pending_drafts import MOST_WRITES
from sglang_adaptive.sglang_plugin.stages.fast_path import kv_only
from sglang_adaptive.sglang_plugin.stages.zero_steps import deferred_draft_extend
from tests.engine.stepping import Script, Stepper, no_memory, turns

EASY = models.prompts("easy")


def run(folder: Path) -> dict[str, Any]:
    lab = Stepper(folder)
    return {"timed": timed(lab), "pairs": compare(lab), "prefills": compare_prefills(lab)}


def prompt(lab: Stepper, index: int, length: int = 24) -> list[int]:
    """Return a prompt with a unique first token, which identifies it in the log of drafts."""
    ids = lab.encode(EASY[index])
    return [100 + index, *ids[: length - 1]]


# -- zero steps ------------------------------------------------------------------------------------------------------


def resume(at_zero: int) -> Script:
    """One request: four deep rounds, then *at_zero* zero-step rounds, twice; then a few deep ones."""

    def script(lab: Stepper) -> Iterator[None]:
        lab.force(7)
        lab.ask("a", prompt(lab, 0), 2 * at_zero + lab.tokens_of(rounds=10, steps=7))
        for _ in range(2):
            yield from turns(4)
            lab.force(0)
            yield from turns(at_zero)
            lab.force(7)
        yield from lab.rest()

    return script


def come_and_go(lab: Stepper) -> Iterator[None]:
    """Requests join, finish and are aborted while others owe rows; drafting resumes now and then."""
    lab.force(0)
    lab.ask("a", prompt(lab, 0), 60)
    yield from turns(4)
    lab.ask("b", prompt(lab, 1, 100), 5)  # several prefill chunks; ends at zero steps
    yield from turns(6)
    lab.ask("c", prompt(lab, 2), 70)
    lab.ask("d", prompt(lab, 3), 70)
    yield from turns(7)
    lab.force(3)
    yield
    lab.abort("d")
    yield
    lab.force(0)
    lab.ask("e", prompt(lab, 4), 30)
    yield from turns(5)
    lab.abort("c")
    yield from turns(2)
    lab.force(1)
    yield from turns(2)
    lab.force(0)
    yield from turns(3)
    lab.force(7)
    yield from lab.rest()


def second_turn(lab: Stepper) -> Iterator[None]:
    """A request answers 22 tokens at zero steps; the next prompt is all of that and a little more."""
    lab.force(0)
    lab.ask("a", prompt(lab, 5), 22)
    yield from lab.rest()
    yield from go_on(lab, "b")


def second_turn_after_an_abort(lab: Stepper) -> Iterator[None]:
    """The same, but the answer is cut off: with overlap, while one of its rounds is in flight."""
    lab.force(0)
    yield from cut_off(lab, at=21)
    yield from go_on(lab, "b")


def leave_early(lab: Stepper) -> Iterator[None]:
    """One request is aborted and one stops before the draft sees any of their tokens; a third continues the first.

    With overlap, a round of each is still in flight. By then the prefix cache has all but the last prompt token.
    """
    lab.force(0)
    yield from cut_off(lab, at=2)
    lab.ask("b", prompt(lab, 5), 60, ignore_eos=False, stop_token_ids=[lab.reqs["a"].output_ids[1]])
    yield from lab.rest()
    yield from go_on(lab, "c")


def cut_off(lab: Stepper, at: int) -> Iterator[None]:
    """Ask for an answer and abort it once it has *at* tokens."""
    lab.ask("a", prompt(lab, 5), 60)
    while lab.verified("a") < at:
        yield
    lab.abort("a")
    yield from lab.rest()


def go_on(lab: Stepper, name: str) -> Iterator[None]:
    """Ask for more after the first answer, at seven steps."""
    lab.force(7)
    lab.ask(name, [*prompt(lab, 5), *lab.reqs["a"].output_ids, *prompt(lab, 6)[1:6]], 32)
    yield from lab.rest()


def two_at_zero(lab: Stepper) -> None:
    lab.force(0)
    lab.ask("a", prompt(lab, 7), 48)
    lab.ask("b", prompt(lab, 8), 48)


def retract(lab: Stepper) -> Iterator[None]:
    """The scheduler retracts a running request, which comes back through a new prefill."""
    two_at_zero(lab)
    yield from turns(8)
    with no_memory():
        yield
    yield from turns(9)
    lab.force(7)
    yield from lab.rest()


def hold_fewer(lab: Stepper) -> Iterator[None]:
    """The number of rounds to hold drops below the number already held."""
    two_at_zero(lab)
    yield from turns(7)
    lab.deferred.set_every(min(3, lab.deferred.snapshot()["extend_every"]))
    yield from turns(9)
    lab.force(7)
    yield from lab.rest()


SCRIPTS: dict[str, Script] = {
    **{f"resume after {rounds}": resume(rounds) for rounds in (2, 9, 32)},
    "come and go": come_and_go,
    "second turn": second_turn,
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
    with mock.patch.object(deferred._pending, "owed", lambda key: 0):
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


# -- prompts of several chunks; for all but the last chunk, the draft only makes keys and values ---------------------

CHUNK = 64
"""Tokens of a chunk in `Stepped`."""


def long_prompts(lab: Stepper) -> Iterator[None]:
    """A prompt of four chunks, one of three while the first is answered, and one that shares the first's prefix."""
    text = lab.encode("".join(EASY))
    first = [100, *text[: 4 * CHUNK - 20]]
    lab.force(3)
    lab.ask("a", first, 16)
    yield from turns(6)
    lab.ask("b", [101, *text[40 : 3 * CHUNK]], 16)
    yield from lab.rest()
    lab.ask("c", [*first[: 3 * CHUNK], *text[300 : 300 + 2 * CHUNK]], 16)
    yield from lab.rest()


def compare_prefills(lab: Stepper) -> dict[str, Any]:
    """Return the drafts in both loops with whole passes and short ones, and with faults in the short ones in one."""
    (chunks,), write = lab.round.of(kv_only.Chunks), kv_only.KvOnlyBackend.forward
    ways: dict[str, Any] = {
        "whole": write,
        "short": write,
        "never written": mock.Mock(side_effect=kv_only.Written),
        "failing": mock.Mock(side_effect=ValueError("a fault")),
    }
    found: dict[str, Any] = {}
    for loop in ("overlap", "normal"):
        for how, forward in list(ways.items())[: None if loop == "overlap" else 2]:
            chunks.guard.closed, before = how == "whole", chunks.passes
            with mock.patch.object(kv_only.KvOnlyBackend, "forward", forward):
                ran = lab.run(long_prompts, every=8, overlap=loop == "overlap")
            found[f"{loop}, {how}"] = {**ran, "short": chunks.passes - before, "error": chunks.guard.error}
            chunks.guard.error = None
    return found


# -- which rounds are timed while other requests' prefills come in between -------------------------------------------

LAUNCH_SECONDS = 100.0
"""Launch time of a prefill by this test's clock; a round takes a second."""


def join_one_by_one(lab: Stepper) -> Iterator[None]:
    """A request decodes while three more join, each some rounds apart."""
    lab.force(3)
    for index, tokens in enumerate((84, 56, 36, 12)):
        lab.ask(f"request {index}", prompt(lab, index), tokens)
        yield from turns(6)
    yield from lab.rest()


def timed(lab: Stepper) -> list[dict[str, Any]]:
    """Return the round times taken in both loops, with and without the notice that a prefill is launched."""
    return [
        {"overlap": overlap, "told": told, "launch": LAUNCH_SECONDS, "seconds": _seconds(lab, overlap, told)}
        for overlap, told in ((True, True), (False, True), (True, False))
    ]


def _seconds(lab: Stepper, overlap: bool, told: bool) -> list[float]:
    taken: list[float | None] = []
    clock, worker = lab.controller._clock, lab.worker
    read, launch = clock.read, worker.forward_batch_generation
    now = 0.0

    def logged(*place: Any) -> float | None:
        nonlocal now
        now += 1.0
        taken.append(read(*place))
        return taken[-1]

    def slow(batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal now
        with nullcontext() if told else mock.patch.object(lab.controller, "interrupt"):
            result = launch(batch, *args, **kwargs)
        now += LAUNCH_SECONDS if batch.forward_mode.is_extend() else 0.0
        return result

    with (
        mock.patch.object(clock, "now", lambda: now),
        mock.patch.object(clock, "read", logged),
        mock.patch.object(worker, "forward_batch_generation", slow),
    ):
        lab.run(join_one_by_one, every=8, overlap=overlap)
    return [seconds for seconds in taken if seconds is not None]
