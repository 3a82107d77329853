"""A mixed batch masks only after running requests' pending grammar tokens were accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def a_mixed_batch_waits_for_the_tokens_of_its_grammars() -> None:
    assert waits(mixed=True, grammars=[None, object()], pending=1), "the mask of a mixed batch came before the results"


def other_batches_overlap() -> None:
    """Mixed ones without a grammar or without pending results, and a verify with a grammar."""
    for mixed, grammars, pending in ((True, [None], 1), (True, [object()], 0), (False, [object()], 1)):
        assert not waits(mixed, grammars, pending), (mixed, grammars, pending)


def waits(mixed: bool, grammars: list[Any], pending: int) -> bool:
    """Return whether SGLang's overlapping loop processes pending results before it launches a batch."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    running = [SimpleNamespace(grammar=grammar) for grammar in grammars]
    batch = ScheduleBatch(
        reqs=running,
        forward_mode=ForwardMode.MIXED if mixed else ForwardMode.DECODE,
        has_grammar=any(grammars),
        decoding_reqs=running if mixed else None,
        spec_algorithm=SpeculativeAlgorithm.EAGLE3,
    )
    scheduler = SimpleNamespace(require_mlp_sync=False, result_queue=[None] * pending)
    return bool(Scheduler.is_disable_overlap_for_batch(scheduler, batch, last_batch=None))
