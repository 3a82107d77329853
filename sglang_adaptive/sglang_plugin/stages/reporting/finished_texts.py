"""Passes the text of each finished request to the lookup counter."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.lookups.counter import LookupCounter
from sglang_adaptive.lookups.tally import Tally
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import AUDITED


class FinishedTexts(Stage):
    """The finished requests of one rank; among ranks with the same requests, only the first one counts."""

    def __init__(self, controller: AdaptiveController) -> None:
        """Begin to count unless that is turned off; *controller* reports the counts."""
        self.guard = Guard("lookup-counter")
        self._controller = controller
        self._counter = self.guard.attempt(self._begin)

    def release(self, rest: Rest, req: Any, *args: Any, **kwargs: Any) -> None:
        """Count a request that has released its KV cache in another thread, if it is finished."""
        rest(req, *args, **kwargs)
        if self._counter is not None:
            self.guard.attempt(self._add, self._counter, req)

    def _begin(self) -> LookupCounter | None:
        if ranks.of_the_batch().rank_in_group:
            return None
        counter = LookupCounter(self._write)
        self._controller.count_lookups = counter.report
        return counter

    def _add(self, counter: LookupCounter, req: Any) -> None:
        if req.finished() and not self._controller.warm_up.runs and not req.rid.startswith(AUDITED):
            counter.add(req.origin_input_ids, req.output_ids_through_stop)

    def _write(self, tally: Tally) -> None:
        """Write a request's tally into the trace of rounds, in the counter's thread."""
        trace = self._controller.trace
        if trace is not None:
            trace.add_lookups(tally.rows(), tally.run_tokens)
