"""Keeps what a batch was before its round, and puts it back, by its dictionary.

SGLang 0.5.23 reads each of the hundred fields of a batch one by one, twice, and sets each of them after the round;
docs/architecture.md says what that takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard


class Isolation:
    """The batches of one scheduler, around their rounds."""

    def __init__(self) -> None:
        self.guard = Guard("adaptive: SGLang keeps what a batch was before its round from now on", env.ISOLATION)
        self._fields: tuple[str, ...] = ()

    def of(
        self, isolate: Callable[..., AbstractContextManager[None]], scheduler: Any, batch: Any, overlap: bool
    ) -> AbstractContextManager[None]:
        """Return what SGLang's *isolate* returns: a round of *batch* runs inside it."""
        kept = self.guard.attempt(self._kept, batch)
        if kept is None:
            return isolate(scheduler, batch, overlap=overlap)
        return _Isolated(scheduler, batch, overlap, kept)

    def _kept(self, batch: Any) -> dict[str, Any]:
        values = vars(batch)
        if not self._fields:
            self._fields = tuple(field.name for field in dataclasses.fields(batch))
        return {name: values[name] for name in self._fields}


class _Isolated(AbstractContextManager[None]):
    """As SGLang's ``Scheduler._forward_isolation`` for a speculative server; it says why."""

    __slots__ = ("_batch", "_kept", "_overlap", "_scheduler")

    def __init__(self, scheduler: Any, batch: Any, overlap: bool, kept: dict[str, Any]) -> None:
        self._scheduler, self._batch, self._overlap, self._kept = scheduler, batch, overlap, kept

    def __enter__(self) -> None:
        batch, scheduler = self._batch, self._scheduler
        if batch.sampling_info is not None:
            batch.sampling_info = batch.sampling_info.copy_for_forward()
        if self._overlap:
            # As in record_batch_in_overlap: the tensors outlive this round and the next.
            scheduler.batch_record_ct = (scheduler.batch_record_ct + 1) % 2
            scheduler.batch_record_buf[scheduler.batch_record_ct] = [batch, list(vars(batch).values())]

    def __exit__(self, *_: object) -> None:
        vars(self._batch).update(self._kept)
