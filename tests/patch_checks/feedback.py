"""0001: Verify results and the tier that drafted them."""

from __future__ import annotations

from tests.patch_checks.parts import LADDER, adaptive_worker, published, request, result_processor, verify
from tests.patch_checks.registry import kept, repaired


@repaired
def late_round_of_another_tier_feeds_nothing() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        processor, slot = result_processor(worker), worker.adaptive_controller.params._slots[1]
        verify(processor, [request()], steps=3, correct=0)  # next is 1 step
        assert slot.current_steps == 1, f"the slot stayed at {slot.current_steps} steps"
        before = (slot.ema_accept_len, slot._batch_count)
        verify(processor, [request()], steps=3, correct=3)  # launched before the switch
        assert (slot.ema_accept_len, slot._batch_count) == before, "a 3-step round was credited to the 1-step tier"


@repaired
def zero_step_round_says_nothing_about_drafting() -> None:
    config = {**LADDER, "1": {"candidate_steps": [0, 1]}}
    with published():
        worker = adaptive_worker(config, launch_steps=0)
        processor, slot = result_processor(worker), worker.adaptive_controller.params._slots[1]
        verify(processor, [request()], steps=0, correct=0)  # at zero steps every decision probes the next tier
        assert slot.current_steps == 1, f"the slot stayed at {slot.current_steps} steps"
        verify(processor, [request()], steps=0, correct=0)
        assert slot.current_steps == 1, "a round that drafted nothing ended the probe of 1 step"


@repaired
def results_do_not_switch_the_live_state() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        processor = result_processor(worker)
        verify(processor, [request()], steps=3, correct=0)
        assert worker.speculative_num_steps == 3, "processing a result switched the tier"
        worker.activate_step_by_batch(1)
        assert worker.speculative_num_steps == 1, "the decision did not take effect before the next draft"


@repaired
def easy_text_leaves_zero_steps_although_results_come_late() -> None:
    """With overlap, a round is launched before the previous round's result arrives."""
    config, depths = {**LADDER, "1": {"candidate_steps": [0, 1, 3]}}, list[int]()
    with published():
        worker = adaptive_worker(config, launch_steps=0)
        processor = result_processor(worker)
        for _ in range(60):
            worker.activate_step_by_batch(1)
            depths.append(worker.speculative_num_steps)
            for late in depths[-2:-1]:
                verify(processor, [request()], steps=late, correct=late)
    assert depths[0] == 0 and set(depths[-20:]) == {3}, depths


@kept
def round_of_the_current_tier_feeds_the_average() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        slot = worker.adaptive_controller.params._slots[1]
        verify(result_processor(worker), [request(), request()], steps=3, correct=2)
        assert (slot.ema_accept_len, slot._batch_count) == (2.0, 1), (slot.ema_accept_len, slot._batch_count)
