"""Verify results and the tier that drafted them."""

from __future__ import annotations

from tests.repair_checks.parts import LADDER, adaptive_worker, published, result_processor, verify


def results_do_not_switch_the_live_state() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        processor = result_processor(worker)
        verify(processor, steps=3, correct=0)
        assert worker.speculative_num_steps == 3, "processing a result switched the tier"
        worker.activate_step_by_batch(1)
        assert worker.speculative_num_steps == 1, "the decision did not take effect before the next draft"


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
                verify(processor, steps=late, correct=late)
    assert depths[0] == 0 and set(depths[-20:]) == {3}, depths
