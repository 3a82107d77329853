"""Checks a batch during and after a round, as isolated by its dictionary and as isolated by SGLang."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from sglang_adaptive.sglang_plugin.stages.fast_path.relay import Isolation


def a_round_leaves_a_batch_as_by_sglang() -> None:
    """Also after a round that fails; attributes that a round adds stay."""
    for overlap in (False, True):
        for fails in (False, True):
            mine, theirs = (_after(which, overlap, fails) for which in (True, False))
            assert mine == theirs, (overlap, fails, mine, theirs)


def a_round_keeps_what_it_reads() -> None:
    """With overlap, two rounds keep what they read, each with its own sampling parameters."""
    for which in (True, False):
        scheduler, batch = _scheduler(), _batch()
        with _isolated(which, scheduler, batch, True):
            pass
        kept, values = scheduler.batch_record_buf[scheduler.batch_record_ct]
        assert kept is batch and "for the round" in values and batch.reqs in values, which


def what_is_no_batch_is_left_to_sglang() -> None:
    isolation, asked = Isolation(), []
    broken = SimpleNamespace(seq_lens=1)
    for batch in (broken, _batch()):
        isolation.isolate(lambda *given, **more: asked.append((given, more)), None, batch, overlap=False)  # type: ignore[arg-type, func-returns-value]
    assert len(asked) == 2 and isolation.guard.closed


def _after(ours: bool, overlap: bool, fails: bool) -> Any:
    scheduler, batch = _scheduler(), _batch()
    try:
        with _isolated(ours, scheduler, batch, overlap):
            inside = batch.sampling_info
            batch.seq_lens, batch.input_ids, batch.forward_mode, batch.sampling_info = 8, 9, "verify", None
            batch.added = "stays"
            if fails:
                raise RuntimeError
    except RuntimeError:
        inside = (inside, "failed")
    found = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    found.pop("sampling_info")
    return inside, found, batch.added, batch.sampling_info.name, scheduler.batch_record_ct


def _isolated(ours: bool, scheduler: Any, batch: Any, overlap: bool) -> AbstractContextManager[None]:
    from sglang.srt.managers.scheduler import Scheduler

    sglangs = Scheduler._forward_isolation
    if ours:
        return Isolation().isolate(sglangs, scheduler, batch, overlap=overlap)
    found: AbstractContextManager[None] = sglangs(scheduler, batch, overlap=overlap)
    return found


def _scheduler() -> Any:
    from sglang.srt.managers.scheduler import Scheduler

    made = object.__new__(Scheduler)
    made.batch_record_ct, made.batch_record_buf = 0, [None, None]
    return made


def _batch() -> Any:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    sampling = SimpleNamespace(name="of the batch", copy_for_forward=lambda: "for the round")
    made = ScheduleBatch(reqs=["a request"], spec_algorithm=_SPECULATIVE, sampling_info=sampling)
    made.seq_lens, made.input_ids = 1, None
    return made


_SPECULATIVE = SimpleNamespace(is_none=lambda: False)
