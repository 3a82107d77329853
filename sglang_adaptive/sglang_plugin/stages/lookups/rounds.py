"""Rounds whose drafts are looked up in each request's own text or in finished ones, and what rounds say about them.

The host reads the matches with a round's result, and the policy decides by them, one round behind with overlap; the
verified drafts always come from the device (`texts.py`).
"""

from __future__ import annotations

import weakref
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_adaptive.policy.choice import Source
from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.observation import LONGEST, Lookup, RoundNote
from sglang_adaptive.policy.options import PolicyOptions
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.lookups.memory import (
    SEARCHED,
    SIBLINGS,
    SOURCES,
    Memory,
    Range,
    key_of,
    marks_of,
    tokenized,
)
from sglang_adaptive.sglang_plugin.stages.lookups.texts import SLOTS, Texts, tokens_from

UNDER_WAY = 3
"""Rounds after a request joins in which the host brings tokens that the device has not seen: those of the prefill and
of rounds that were running."""
WHOLE = 4
"""Requests up to which each searches as much of the memory as it may; more share that, so that a round is no slower."""


@dataclass(slots=True)
class _Tracked:
    """A request with a text on the device."""

    req: weakref.ref[Any]
    """SGLang's request, because a client may use an id again."""
    slot: int
    known: int = 0
    """Tokens that the host has brought."""
    late: int = 0
    """Rounds in which the host may still bring tokens."""
    ranges: Sequence[Range] = ()
    """What it searches of the memory."""
    chosen: tuple[int, int] = 0, 0
    """The memory's version and the requests' share of a round when they were chosen."""


def allow_lookups(worker: Any, controller: AdaptiveController) -> bool:
    """Return whether rounds of *worker* may look drafts up; if so, its policy can choose that, and states are built."""
    from sglang.srt.runtime_context import get_schedule

    asked = configuration().options.lookup
    if not asked or not features.may("lookups", Setup.of(worker), asked is True):
        return False
    controller.allow_lookups(True, behind=int(not get_schedule().disable_overlap_schedule))
    return True


class LookupRounds(Stage):
    """The lookups of one scheduler's rounds."""

    def __init__(
        self, worker: Any, controller: AdaptiveController, link: Callable[..., Any] = lambda *_: None,
        *, options: PolicyOptions,
    ) -> None:  # fmt: skip
        """*link* makes a verify input from drafts on a device, or returns None; *options* set up the memory."""
        self._controller, self._link = controller, link
        runner = worker.target_worker.model_runner
        length, room = runner.model_config.context_len, options.lookup_memory_mb << 18  # tokens of 4 bytes
        self._texts = Texts(length, runner.model_config.vocab_size, runner.device, room)
        self._memory = None
        if room:
            file = tokenized(options.lookup_texts, worker.target_worker.tokenizer) if options.lookup_texts else []
            self._memory = Memory(room, length, SEARCHED[self._texts.device.type], file)
        self._started = {name: getattr(options, name) for name in ("lookup_memory_mb", "lookup_texts")}
        self._remembers, self._searched = True, 0
        """Whether the configuration has a memory, and its version when the latest round's sources were chosen."""
        # Ranks with different drafts would wait for one another.
        self.guard = Guard("lookups")
        self._marks: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        """By request, the marks of its prompt (``memory.marks_of``)."""
        self._tracked: dict[str, _Tracked] = {}
        """By request id, least recently used first; at most SLOTS."""
        self._followed: list[str] = []
        """The requests of the previous round, if it was tracked."""
        self._batch: Any = None
        """The batch of this round, if it is tracked; late draft extends have other batches."""
        self._slots: torch.Tensor | None = None
        """The text slots of this round's requests, on the device; None if it is not tracked."""

    @property
    def live(self) -> bool:
        """Whether the coming round verifies looked-up drafts."""
        return self._controller.states.live.source is Source.LOOKUP

    def looked_up(self, batch: Any) -> bool:
        """Whether this round is of *batch* and verified looked-up drafts."""
        return batch is self._batch and self.live

    def update_running_batch(self, rest: Rest, scheduler: Any, batch: Any) -> Any:
        """Prepare the decode batch for its next round, and name its requests to the policy."""
        found = rest(scheduler, batch)
        if found is not None:  # SGLang may skip this round
            few = len(found.reqs) <= self._controller.policy.lookup_requests
            before = self._controller.requests
            self._controller.requests = rids = [req.rid for req in found.reqs] if few else ()
            if self._memory is not None and rids != before:
                new = [req for req in found.reqs if req.rid not in before] if few else []
                self._attempt(self._joined, self._memory, found.reqs, new)
        return found

    def _joined(self, memory: Memory, reqs: Any, new: Any) -> None:
        """Track the coming rounds if a *new* request's prompt is that of another of *reqs* or of a finished one."""
        if new:
            requests = Counter(self._marks_of(req)[-1] for req in reqs)
            marks = [self._marks_of(req)[-1] for req in new]
            if any(requests[mark] > 1 or memory.has(mark) for mark in marks):
                self._controller.policy.expect_copies()

    def _marks_of(self, req: Any) -> list[int]:
        found = self._marks.get(req)
        if found is None:
            prompt = tokens_from(req.origin_input_ids, array("q"), 0)
            found = self._marks[req] = marks_of(key_of(req), prompt)
        return found

    def draft(self, rest: Rest, drafter: Any, batch: Any, **kwargs: Any) -> Any:
        """Update the texts of *batch*, and return the verify input: looked-up drafts, or else the draft's."""
        if not batch.forward_mode.is_idle():
            self.begin(batch)
            if self.live:
                count = self._controller.states.live.steps
                if self._batch is None:  # held by an operator at a larger batch, or lookups have ended
                    drafts = torch.zeros((len(batch.reqs), count), dtype=torch.int64, device=batch.device)
                else:
                    drafts = self._texts.drafts(self._slots, count)
                found = self._link(drafter, batch, drafts) if batch.seq_lens.is_cuda else None
                return _linked(drafter, batch, drafts) if found is None else found
        return rest(drafter, batch, **kwargs)

    def after_draft_extend(self, batch: Any, result: Any) -> None:
        """Append the round's tokens to the texts, and look up the next round's drafts."""
        if batch is self._batch and not batch.forward_mode.is_idle():
            self._attempt(self._end, batch, result)

    def begin(self, batch: Any) -> None:
        """Update the texts of *batch* before a round, if it is tracked."""
        self._batch = batch if self._attempt(self._begin, batch) else None
        if self._batch is None:
            self._slots, self._followed = None, []

    before_zero_steps = begin

    def release(self, rest: Rest, req: Any, *args: Any, **kwargs: Any) -> None:
        """Free the KV slots of a request, and keep its text if it has finished."""
        rest(req, *args, **kwargs)
        if self._memory is not None and self._remembers and not self.guard.closed:
            self._attempt(self._keep, self._memory, req)

    def weights_changed(self) -> None:
        """Forget finished texts: new weights write others."""
        if self._memory is not None:
            self._memory.forget()

    def flush_cache(self, rest: Rest, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Empty the prefix cache, and forget finished texts with it."""
        done = rest(scheduler, *args, **kwargs)
        if done:
            self.weights_changed()
        return done

    def require(self, config: AdaptiveConfig) -> None:
        """Raise ConfigError if *config* has a memory other than the one that the server started with."""
        for name, started in self._started.items() if config.options.lookup_memory_mb else ():
            if (asked := getattr(config.options, name)) != started:
                expected = f"{shown(started)}: the memory is set up at server start"
                raise ConfigError(config.source, f"{config.policy}.{name}", f"got {shown(asked)}", expected)

    def reconfigured(self, config: AdaptiveConfig) -> None:
        """Forget finished texts, and keep none while *config* has no memory."""
        self.weights_changed()
        self._remembers = config.options.lookup_memory_mb > 0

    def _attempt(self, part: Callable[..., Any], *args: Any) -> Any:
        """Run *part*; after its first error, the policy chooses no lookup rounds any more."""
        found = self.guard.attempt(part, *args)
        if self.guard.closed and self._controller.policy.lookup_requests:
            self._controller.allow_lookups(False)
        return found

    def _begin(self, batch: Any) -> bool:
        rids = [req.rid for req in batch.reqs]
        # An operator may hold lookups while tracking rests. Rounds with a grammar have no room for lookups, and without
        # matches the policy chooses none.
        tracked = self.live or (self._controller.tracks_texts and not batch.has_grammar)
        if not tracked or len(rids) > self._controller.policy.lookup_requests:
            return False
        for req in batch.reqs:
            self._bring(req)
        self._search(batch.reqs, rids != self._followed)
        if rids != self._followed:
            self._slots = torch.tensor([self._tracked[rid].slot for rid in rids], dtype=torch.int32)
            if self._texts.device.type == "cuda":
                self._slots = self._slots.pin_memory().to(self._texts.device, non_blocking=True)
        self._followed = rids
        return True

    def _bring(self, req: Any) -> None:
        """Write the tokens that the host knows and the device may not."""
        rid, found = req.rid, self._tracked.pop(req.rid, None)
        comes = found is None or found.req() is not req or rid not in self._followed
        if found is None or found.req() is not req:
            found = _Tracked(weakref.ref(req), self._free() if found is None else found.slot)
        self._tracked[rid] = found
        if comes:
            found.late = UNDER_WAY
        if found.late:
            found.late -= 1
            begin, end = found.known, len(req.origin_input_ids) + len(req.output_ids)
            if comes or end > begin:
                self._texts.write(found.slot, begin, tokens_from(req.origin_input_ids, req.output_ids, begin), comes)
                found.known = end

    def _keep(self, memory: Memory, req: Any) -> None:
        """Keep the text of a request that was not aborted or retracted."""
        if req.finished() and req.finished_reason.to_json()["type"] != "abort" and req.input_embeds is None:
            text = tokens_from(req.origin_input_ids, req.output_ids_through_stop, 0)
            memory.keep(key_of(req), text, len(req.origin_input_ids))

    def _search(self, reqs: Any, changed: bool) -> None:
        """Bring the memory up to date, and choose what the requests of a round, which may have *changed*, search."""
        memory = self._memory if self._remembers and self._controller.policy.searches_memory else None
        if memory is not None:
            for begin, tokens in memory.arrivals():
                self._texts.remember(begin, tokens)
        version = 0 if memory is None else memory.version
        former, self._searched = self._searched, version
        if memory is None:
            if former:
                self._texts.search([((), ())] * SLOTS)
            return
        if not changed and version == former:
            return
        tracked, share = [self._tracked[req.rid] for req in reqs], max(1, len(reqs) // WHOLE)
        siblings: defaultdict[int, list[Range]] = defaultdict(list)
        for req, one in zip(reqs, tracked, strict=True):
            marks = self._marks_of(req)
            if one.chosen != (version, share):
                one.chosen, one.ranges = (version, share), memory.sources(key_of(req), marks, share)
            siblings[marks[-1]].append((one.slot, max(0, len(req.origin_input_ids) - LONGEST)))
        found = []
        for req, one in zip(reqs, tracked, strict=True):
            running = [other for other in siblings[self._marks_of(req)[-1]] if other[0] != one.slot][:SIBLINGS]
            found.append((running, one.ranges[: SOURCES - len(running)]))
        self._texts.search(found)

    def _free(self) -> int:
        """Return a free text slot, or that of the least recently tracked request."""
        if len(self._tracked) < SLOTS:
            taken = {one.slot for one in self._tracked.values()}
            return next(slot for slot in range(SLOTS) if slot not in taken)
        return self._tracked.pop(next(iter(self._tracked))).slot

    def _end(self, batch: Any, result: Any) -> None:
        told = self._texts.follow(self._slots, batch.seq_lens, result.next_token_ids, result.accept_lens)
        on_host = told.to("cpu", non_blocking=True)
        note_of(result, self._controller.states).arriving.append(partial(_tell, on_host))


def _tell(told: torch.Tensor, note: RoundNote, result: Any) -> None:
    note.lookups = [Lookup(*row) for row in told.tolist()]


def _linked(drafter: Any, batch: Any, drafts: torch.Tensor) -> Any:
    """Return the verify input of chains of *drafts* [b, steps], as SGLang makes it for topk 1."""
    from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

    requests = drafts.shape[0]
    return build_eagle_verify_input(
        batch, batch.spec_info, drafter._topk1_parents_prealloc[:requests],
        drafter._topk1_score_indices_prealloc[:requests], drafts, None, target_worker=drafter.target_worker, topk=1,
        num_steps=drafts.shape[1], num_draft_tokens=drafts.shape[1] + 1, tree_mask_mode=drafter.tree_mask_mode,
        device=drafter.device,
    )  # fmt: skip
