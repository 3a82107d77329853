"""Saves the fields of a batch before its round and restores them afterwards, through its ``__dict__``.

SGLang 0.5.23 reads each of a batch's hundred fields one by one, twice, and sets each of them after the round;
docs/architecture.md has the time that takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class Isolation(Stage):
    """Saves and restores the batches of one scheduler."""

    def __init__(self) -> None:
        self.guard = Guard("isolation")
        self._fields: tuple[str, ...] = ()
        self._values: Callable[[Any], tuple[Any, ...]] | None = None
        """Returns the values of these fields."""

    def isolate(self, rest: Rest, scheduler: Any, batch: Any, *, overlap: bool) -> Any:
        """Return a context manager for a round of *batch*."""
        kept = self.guard.attempt(self._kept, batch)
        if kept is None:
            return rest(scheduler, batch, overlap=overlap)
        return _Isolated(scheduler, batch, overlap, zip(self._fields, kept, strict=True))

    def _kept(self, batch: Any) -> tuple[Any, ...]:
        if self._values is None:
            self._fields = tuple(field.name for field in dataclasses.fields(batch))
            self._values = itemgetter(*self._fields)
        return self._values(vars(batch))


class _Isolated(AbstractContextManager[None]):
    """Does what SGLang's ``Scheduler._forward_isolation`` does on a speculative server; see there for the reasons."""

    __slots__ = ("_batch", "_kept", "_overlap", "_scheduler")

    def __init__(self, scheduler: Any, batch: Any, overlap: bool, kept: Iterable[tuple[str, Any]]) -> None:
        self._scheduler, self._batch, self._overlap, self._kept = scheduler, batch, overlap, kept

    def __enter__(self) -> None:
        batch, scheduler = self._batch, self._scheduler
        if batch.sampling_info is not None:
            batch.sampling_info = _for_forward(batch.sampling_info, vars(batch).pop(NOTE, None))
        if self._overlap:
            # As in record_batch_in_overlap: the tensors outlive this round and the next.
            scheduler.batch_record_ct = (scheduler.batch_record_ct + 1) % 2
            scheduler.batch_record_buf[scheduler.batch_record_ct] = [batch, list(vars(batch).values())]

    def __exit__(self, *_: object) -> None:
        vars(self._batch).update(self._kept)


def _for_forward(info: Any, penalties: Any) -> Any:
    """Return the copy of *info* that a round reads; *penalties* are noted on its batch if SGLang's are not needed."""
    if penalties is None:
        return info.copy_for_forward()
    return dataclasses.replace(
        info, penalizer_orchestrator=None, acc_additive_penalties=penalties, acc_scaling_penalties=None
    )
