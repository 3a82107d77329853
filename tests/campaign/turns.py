"""The stepped scheduler, one turn of its own loop at a time; after each its invariants and its outputs are checked.

``tests.engine.stepping`` runs a script inside SGLang's loop. Here the loop runs in a thread and waits before every turn
until it is released, so that the caller can decide from what has happened so far.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import SLOTS, Stepper

PATIENCE = 120.0
"""Seconds after which a turn counts as hung; the longest turn takes a tenth of a second."""
MOST_TOKENS = 60
"""Tokens of the longest answer."""

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
                while not lab.done():
                    yield

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


class Turns:
    """One run of a Stepper, from an empty cache to an empty scheduler."""

    def __init__(self, lab: Stepper, references: References, *, every: int, overlap: bool) -> None:
        self.lab, self._references = lab, references
        self.tried: Counter[str] = Counter()
        self.prompts: dict[str, Prompt] = {}
        self._gone: set[str] = set()
        self._forced: int | None = None
        self._go: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._paused = threading.Semaphore(0)
        self._error: BaseException | None = None
        clear(lab)
        self._switches = lab.controller.snapshot()["switches"]
        self._thread = threading.Thread(target=self._loop, args=(every, overlap), daemon=True)
        self._thread.start()
        self._await()

    def ask(self, prompt: Prompt, tokens: int, stops: Sequence[int] = ()) -> str:
        """Send a greedy request, which enters at the next turn and ends with the first token of *stops*; return its id.

        SGLang knows a last token by length before its round runs, but a stop only after the round.
        """
        rid = f"r{len(self.prompts)}"
        self.prompts[rid] = prompt
        how = {"ignore_eos": False, "stop_token_ids": list(stops)} if stops else {}
        self.lab.ask(rid, list(prompt), tokens, **how)
        self.tried["request that stops" if stops else "request"] += 1
        return rid

    def force(self, steps: int | None) -> None:
        self._forced = steps
        self.lab.force(steps)

    def abort(self, rid: str) -> None:
        """Abort a request; a waiting one is gone at once, and SGLang never reports it as finished."""
        queued = [req.rid for req in self.lab.scheduler.waiting_queue]
        self.lab.abort(rid)
        if rid in queued and rid not in [req.rid for req in self.lab.scheduler.waiting_queue]:
            self._gone.add(rid)
        self.tried["abort"] += 1

    def live(self) -> list[str]:
        """Return the ids of unfinished requests."""
        return [rid for rid, req in self.lab.reqs.items() if rid not in self._gone and not req.finished()]

    def ended(self) -> list[str]:
        return [rid for rid in self.lab.reqs if self.lab.done(rid)]

    def turn(self, count: int = 1) -> None:
        """Run *count* turns of the loop. Raises Broken when a check fails after one of them."""
        for _ in range(count):
            self._go.put(True)
            self._await()
            self.check()

    def check(self) -> None:
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

    def close(self) -> None:
        """Let every request end, then the loop. Raises Broken if an output differs or a slot is missing."""
        for _ in range(40 * MOST_TOKENS):
            if all(rid in self._gone or self.lab.done(rid) for rid in self.lab.reqs):
                break
            self.turn()
        else:
            raise Broken(f"requests without end: {self.live()}")
        outputs = self.lab.outputs()
        self._end()
        if (free := self.lab.free_slots()) != SLOTS:
            raise Broken(f"{SLOTS - free} of {SLOTS} slots are lost")
        self.tried["switch"] = self.lab.controller.snapshot()["switches"] - self._switches
        clear(self.lab)
        for rid, output in outputs.items():
            if output:  # an aborted request may have none
                require_same(rid, output, self._references.of(self.prompts[rid], len(output)))

    def give_up(self) -> None:
        """End the loop and drop all requests; the scheduler is as new afterwards."""
        if self._thread.is_alive():
            self._end()
        clear(self.lab)

    def _loop(self, every: int, overlap: bool) -> None:
        def script(_: Stepper) -> Iterator[None]:
            while True:
                self._paused.release()
                if not self._go.get():
                    return
                yield

        try:
            self.lab.run(script, every=every, overlap=overlap)
        except BaseException as error:
            self._error = error
        self._paused.release()

    def _await(self) -> None:
        if not self._paused.acquire(timeout=PATIENCE):
            raise Broken(f"no turn ended in {PATIENCE:.0f} s")
        if self._error is not None:
            raise Broken(f"the loop ended: {type(self._error).__name__}: {self._error}") from self._error

    def _end(self) -> None:
        self._go.put(False)
        self._thread.join(PATIENCE)


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
