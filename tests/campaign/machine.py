"""Random sequences of scheduler events, drawn by hypothesis, which shrinks a failing sequence to the shortest.

After each turn of the scheduler's loop, its invariants and its outputs are checked.

``python -m tests.campaign.machine FOLDER SEED EXAMPLES`` prints what was tried as JSON, and the sequence that failed.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import psutil
from hypothesis import strategies as draw

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.policy.choice import drafted
from tests.engine.stepping import SLOTS, TIERS, Stepper, no_memory

FEW = 5
"""Up to this many sequences, references are made only as needed, at the end."""
MOST_LIVE = 7
"""Requests at once; the scheduler runs eight and queues more."""
MOST_TOKENS = 60
"""Tokens of the longest answer."""
TIER_SETS: list[list[int]] = [[0], [1], [7], [0, 1], [1, 3], [0, 7], [0, 1, 3, 7]]
JUMPY = {"ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
CONFIGS: list[dict[str, Any]] = [
    *({"policy": "ema", "1": JUMPY | {"candidate_steps": tiers}} for tiers in TIER_SETS),
    {"1": JUMPY | {"candidate_steps": [7]}, "2": JUMPY | {"candidate_steps": [0]}, "3": {"candidate_steps": [1, 3]}},
    *({"policy": "throughput", "throughput": {"candidate_steps": tiers}} for tiers in TIER_SETS[1:]),
    {"throughput": {"candidate_steps": TIERS, "sync_rounds": 1, "probe_budget": 0.2}},
]
RAISES = RuntimeError("raised by the campaign")
DEPTHS: list[Any] = [5, -1, 10**9, None, "7", 1.5, float("nan")]
NONSENSE: list[Any] = [5, *map(drafted, DEPTHS), RAISES]
METHODS = ("choose", "observe", "snapshot", "prices", "export_cost", "import_cost")
"""What of a policy is spoilt; of any but the first the answer is not used as a depth, and it raises."""

Prompt = tuple[int, ...]


class Broken(AssertionError):
    """A check failed; the message says which."""


class References:
    """Outputs without speculation: each prompt alone, at zero steps, with a draft extend every round."""

    def __init__(self, lab: Stepper) -> None:
        self._lab = lab
        self.known: dict[Prompt, list[int]] = {}

    def of(self, prompt: Prompt, count: int = MOST_TOKENS) -> list[int]:
        """Return at least *count* tokens that follow *prompt*; call it only between two runs unless they are known."""
        if len(self.known.get(prompt, ())) < count:

            def alone(lab: Stepper) -> Iterator[None]:
                lab.force(0)
                lab.ask("r", list(prompt), count)
                yield from lab.rest()

            self.known[prompt] = self._lab.run(alone, every=1, overlap=False)["outputs"]["r"]
        return self.known[prompt]


def require_same(rid: str, output: Sequence[int], wanted: Sequence[int]) -> None:
    """Raise Broken unless *wanted* starts with *output*."""
    if list(output) != list(wanted[: len(output)]):
        at = next(i for i, pair in enumerate(zip(output, wanted, strict=False)) if pair[0] != pair[1])
        raise Broken(f"{rid}: token {at} is {output[at]}, without speculation {wanted[at]}")


def prompts(lab: Stepper) -> list[Prompt]:
    """Return prompts of 1 to 150 tokens, three with a common prefix; a prefill takes 64 at once."""
    easy, hard = models.prompts("easy"), models.prompts("hard")
    found = [tuple(lab.encode(" ".join([text] * 20))) for text in (*easy[:4], *hard[:4])]
    lengths = (24, 1, 2, 70, 64, 65, 17, 150)
    return [*(tokens[:length] for tokens, length in zip(found, lengths, strict=True)), found[0][:40], found[0][:130]]


class Run:
    """One run of SGLang's scheduler and worker with the shipped pair and the package's controller.

    A method that yields is an event of a sequence; each yield is a turn of the scheduler. A policy measures real times,
    so a repeated sequence may differ: no draw depends on the state, and an event that does not apply does nothing.
    """

    def __init__(self, lab: Stepper, references: References, some: Sequence[Prompt]) -> None:
        self.lab, self._references, self._some = lab, references, some
        self.tried: Counter[str] = Counter()
        self.prompts: dict[str, Prompt] = {}
        self._gone: set[str] = set()
        self._forced: int | None = None

    def play(self, every: int, overlap: bool, first: Sequence[int], events: Sequence[Event]) -> None:
        """Ask the prompts *first*, act, and let every request end. Raises Broken if a check fails."""

        def script(_: Stepper) -> Iterator[None]:
            for place in first:
                self._ask(self._some[place], MOST_TOKENS)
            for event in events:
                yield from event(self)
            yield from self._rest()

        switches = self.lab.controller.snapshot()["switches"]
        found = self.lab.run(script, every=every, overlap=overlap)
        if (free := found["free_slots"]) != SLOTS:
            raise Broken(f"{SLOTS - free} of {SLOTS} slots are lost")
        self.tried["switch"] = self.lab.controller.snapshot()["switches"] - switches
        for rid, output in found["outputs"].items():
            if output:  # an aborted request may have none
                require_same(rid, output, self._references.of(self.prompts[rid], len(output)))

    # -- events --------------------------------------------------------------------------------------------------------

    def ask(self, place: int, tokens: int, stops: Sequence[int], then: int) -> Iterator[None]:
        if len(self._live()) < MOST_LIVE:
            self._ask(self._some[place], tokens, stops)
            yield from self.turns(then)

    def ask_on(self, place: int, tokens: int, then: int) -> Iterator[None]:
        """Send a further turn: an earlier request's prompt and answer, and a little more."""
        rid = _of([rid for rid in self.lab.reqs if self.lab.done(rid)], place)
        if rid is not None and len(self._live()) < MOST_LIVE:
            text = (*self.prompts[rid], *self.lab.reqs[rid].output_ids, *self._some[0][:3])
            if len(text) < 300:
                self._ask(text, tokens)
                yield from self.turns(then)

    def turns(self, then: int) -> Iterator[None]:
        """Only let *then* turns pass. Raises Broken when a check fails after one of them."""
        for _ in range(then):
            yield
            self._check()

    def force(self, steps: int | None, then: int) -> Iterator[None]:
        self._force(steps)
        self.tried["force"] += 1
        yield from self.turns(then)

    def switch_each_turn(self, steps: Sequence[int]) -> Iterator[None]:
        for one in steps if self._live() else ():
            self._force(one)
            yield from self.turns(1)

    def abort(self, place: int, then: int) -> Iterator[None]:
        """Abort a request; a waiting one is gone at once, and SGLang never reports it as finished."""
        rid = _of(self._live(), place)
        if rid is not None:
            queued = [req.rid for req in self.lab.scheduler.waiting_queue]
            self.lab.abort(rid)
            if rid in queued and rid not in [req.rid for req in self.lab.scheduler.waiting_queue]:
                self._gone.add(rid)
            self.tried["abort"] += 1
            yield from self.turns(then)

    def retract(self, then: int) -> Iterator[None]:
        """Let the scheduler retract a running request, which comes back through a new prefill.

        SGLang never retracts the only running request.
        """
        if self._live():
            before = self.lab.retractions()
            with no_memory():
                yield from self.turns(1)
            self.tried["retraction"] += self.lab.retractions() - before
            yield from self.turns(then)

    def flush(self, then: int) -> Iterator[None]:
        """Flush the cache, which SGLang does only when nothing runs."""
        with mock.patch("logging.warning"):
            self.tried["cache flush"] += self.lab.scheduler.flush_cache()
        yield from self.turns(then)

    def extend_every(self, every: int, then: int) -> Iterator[None]:
        self.lab.deferred.set_every(every)
        yield from self.turns(then)

    def configure(self, config: dict[str, Any], then: int) -> Iterator[None]:
        configure(self.lab, config)
        self.tried["configuration"] += 1
        yield from self.turns(then)

    def spoil(self, answer: Any, method: str, calls: int, then: int) -> Iterator[None]:
        """Let the policy raise or return nonsense after some calls, until it is replaced."""
        _spoil(self.lab.controller.policy, method, answer if method == METHODS[0] else RAISES, calls)
        self.tried["spoilt policy"] += 1
        yield from self.turns(then)

    # -- what they do --------------------------------------------------------------------------------------------------

    def _ask(self, prompt: Prompt, tokens: int, stops: Sequence[int] = ()) -> None:
        """Send a greedy request, which enters at the next turn and ends with the first token of *stops*.

        SGLang knows a last token by length before its round runs, but a stop only after the round.
        """
        rid = f"r{len(self.prompts)}"
        self.prompts[rid] = prompt
        how = {"ignore_eos": False, "stop_token_ids": list(stops)} if stops else {}
        self.lab.ask(rid, list(prompt), tokens, **how)
        self.tried["request that stops" if stops else "request"] += 1

    def _force(self, steps: int | None) -> None:
        self._forced = steps
        self.lab.force(steps)

    def _live(self) -> list[str]:
        """Return the ids of unfinished requests."""
        return [rid for rid, req in self.lab.reqs.items() if rid not in self._gone and not req.finished()]

    def _rest(self) -> Iterator[None]:
        for _ in range(40 * MOST_TOKENS):
            if all(rid in self._gone or self.lab.done(rid) for rid in self.lab.reqs):
                return
            yield from self.turns(1)
        raise Broken(f"requests without end: {self._live()}")

    def _check(self) -> None:
        """Raise Broken unless all invariants between two turns hold."""
        self.tried["turn"] += 1
        scheduler, worker = self.lab.scheduler, self.lab.worker
        scheduler.invariant_checker.self_check_during_busy()  # free + cached + owned = pool; no page has two owners
        live = worker.speculative_num_steps
        states = self.lab.controller.states.by_steps
        state = next((state for state in states if state.speculative_num_steps == live), None)
        if state is None or not _applied(worker, state):
            raise Broken(f"the parts in force are not those of {live} steps")
        batch = scheduler.last_batch
        if self._forced not in (None, live) and batch is not None and batch.forward_mode.is_decode():
            raise Broken(f"{self._forced} steps are forced, and a round ran at {live}")
        for rid, req in self.lab.reqs.items():
            wanted = self._references.known.get(self.prompts[rid])
            if wanted is not None:
                require_same(rid, list(req.output_ids_through_stop)[: len(wanted)], wanted)


Event = Callable[[Run], Iterator[None]]


def _event(act: Callable[..., Iterator[None]], **drawn: draw.SearchStrategy[Any]) -> draw.SearchStrategy[Event]:
    return draw.builds(partial, draw.just(act), **drawn)


PLACES = draw.integers(0, 9)
"""Index of a prompt in the list, or of a request among the candidates."""
TOKENS = draw.sampled_from((1, 2, 5, 17, 40, MOST_TOKENS))
STOPS = draw.sampled_from(([], list(b"et"), list(b"aeiou ,")))
"""Tokens that end a request."""
EVERY = draw.integers(1, 33)
THEN = draw.sampled_from((1, 0, 0, 2, 6))
"""Turns after an event."""
EVENTS = [
    _event(Run.ask, place=PLACES, tokens=TOKENS, stops=STOPS, then=THEN),
    _event(Run.ask_on, place=PLACES, tokens=TOKENS, then=THEN),
    _event(Run.turns, then=draw.integers(1, 12)),
    _event(Run.force, steps=draw.sampled_from([*TIERS, None]), then=THEN),
    _event(Run.switch_each_turn, steps=draw.lists(draw.sampled_from(TIERS), min_size=2, max_size=12)),
    _event(Run.abort, place=PLACES, then=THEN),
    _event(Run.retract, then=THEN),
    _event(Run.flush, then=THEN),
    _event(Run.extend_every, every=EVERY, then=THEN),
    _event(Run.configure, config=draw.sampled_from(CONFIGS), then=THEN),
    _event(
        Run.spoil, answer=draw.sampled_from(NONSENSE), method=draw.sampled_from(METHODS), calls=draw.integers(0, 9),
        then=THEN,
    ),
]  # fmt: skip


@draw.composite
def sequences(one: draw.DrawFn) -> list[Event]:
    """Draw a sequence of some kinds of events, about 60: several lists, because hypothesis draws about five for one."""
    kinds = one(draw.lists(draw.sampled_from(EVENTS), min_size=3, unique=True))
    return list(chain(*one(draw.lists(draw.lists(draw.one_of(kinds)), min_size=6, max_size=24))))


def configure(lab: Stepper, config: dict[str, Any]) -> None:
    from sglang_adaptive.sglang_plugin.admin.handlers import Change, Reconfigure

    handler, change = Reconfigure(lab.round), Change(config, "adaptive_config", "the campaign")
    handler.validate("adaptive_config", change)
    handler.apply("adaptive_config", change)


def clear(lab: Stepper) -> None:
    """Drop every request, whatever state the scheduler is in."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    scheduler = lab.scheduler
    scheduler.waiting_queue.clear()
    scheduler.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
    scheduler.last_batch = scheduler.cur_batch_for_debug = scheduler.chunked_req = None
    if hasattr(scheduler, "result_queue"):
        scheduler.result_queue.clear()
    lab.deferred._pending.settle()
    lab.deferred._held.clear()
    scheduler._engine_paused = False
    with mock.patch("logging.Logger.info"):
        assert scheduler.flush_cache()


def _applied(worker: Any, state: Any) -> bool:
    """Return whether every part of *state* is active, in the target and in the draft."""
    draft, target = worker._draft_worker, worker._target_worker.model_runner
    width = state.speculative_num_draft_tokens
    return (
        target.attn_backend is state.target_attn_backend
        and draft.draft_attn_backend is state.draft_attn_backend
        and draft.draft_extend_attn_backend is state.draft_extend_attn_backend
        and draft.speculative_num_steps == state.speculative_num_steps
        and (worker.speculative_num_draft_tokens, draft.speculative_num_draft_tokens) == (width, width)
    )


def _of(rids: list[str], place: int) -> str | None:
    return rids[place % len(rids)] if rids else None


def _spoil(policy: Any, method: str, answer: Any, rounds: int) -> None:
    """Let *method* of *policy* raise or return *answer* after *rounds* calls."""
    sound, left = getattr(policy, method, None), iter(range(rounds))
    if sound is None:
        return

    def spoilt(*args: Any, **how: Any) -> Any:
        if next(left, None) is not None:
            return sound(*args, **how)
        if isinstance(answer, Exception):
            raise answer
        return answer

    setattr(policy, method, spoilt)


def main(folder: str, seed: str, examples: str) -> int:
    """Run *examples* sequences of *seed*; print the counts and, after a failure, the shortest failing sequence."""
    os.environ |= {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
    lab = Stepper(Path(folder))
    references, some = References(lab), prompts(lab)
    for prompt in some if int(examples) > FEW else ():
        references.of(prompt)  # known in advance, so that a wrong token is detected in its round
    tried: Counter[str] = Counter()
    broken: list[str] = []  # of every sequence that failed: a broken loop may not break again

    @hypothesis.seed(int(seed))
    @hypothesis.settings(
        max_examples=int(examples), deadline=None, database=None, print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(EVERY, draw.booleans(), draw.lists(PLACES, min_size=1, max_size=4), sequences())
    def play(every: int, overlap: bool, first: list[int], events: list[Event]) -> None:
        run = Run(lab, references, some)
        try:
            run.play(every, overlap, first, events)
        except Exception as error:
            broken.append(repr(error))
            print(f"broken: {error!r}", file=sys.stderr, flush=True)
            raise
        finally:
            tried.update({**run.tried, "sequence": 1})
            clear(lab)
            lab.controller.force_steps(None)
            configure(lab, CONFIGS[6])
            lab.deferred.set_every(8)

    memory, failure, said = psutil.Process().memory_info().rss, "", io.StringIO()
    try:
        with redirect_stdout(said):
            play()
    except BaseException as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        failure = "\n".join(["".join(broken[:1]), repr(error), notes, said.getvalue(), traceback.format_exc()[-3000:]])
    grown = (psutil.Process().memory_info().rss - memory) / 1e6
    print(json.dumps({"tried": dict(tried), "grown_mb": round(grown, 1), "failure": failure}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
