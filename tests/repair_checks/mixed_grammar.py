"""A mixed batch masks only after running requests' pending grammar tokens were accepted."""

from __future__ import annotations

from types import SimpleNamespace


def a_mixed_batch_waits_for_the_tokens_of_its_grammars() -> None:
    assert waits(mixed=True, grammars=[None, object()]), "the mask of a mixed batch was built before the results"


def a_mixed_batch_without_grammars_overlaps() -> None:
    assert not waits(mixed=True, grammars=[None])


def a_verify_with_a_grammar_overlaps() -> None:
    assert not waits(mixed=False, grammars=[object()])


def nothing_waits_without_pending_results() -> None:
    assert not waits(mixed=True, grammars=[object()], pending=0)


def waits(*, mixed: bool, grammars: list[object | None], pending: int = 1) -> bool:
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
