"""The override log, and what a switch logs."""

from __future__ import annotations

from typing import Any

from tests.repair_checks.parts import adaptive_worker, logged, published, rank_zero, result_processor, verify


def ten_thousand_switches_leave_the_override_log_bounded() -> None:
    from sglang.srt.runtime_context import get_context

    with published():
        worker = adaptive_worker(launch_steps=3)
        at_start = len(get_context().overrides_log())
        switch_to_and_fro(worker, 10_000)
        grown = len(get_context().overrides_log()) - at_start
        assert grown <= 1, f"the override log grew by {grown} entries"


def a_switch_logs_at_most_one_line() -> None:
    with published(), rank_zero():
        worker = adaptive_worker(launch_steps=3)
        processor = result_processor(worker)
        with logged() as lines:
            for correct, steps in ((0, 3), (1, 1)):
                verify(processor, steps=steps, correct=correct)
                worker.activate_step_by_batch(1)
        assert len(lines) <= 2, f"2 switches logged {len(lines)} lines at INFO: {lines}"


def readback_has_the_live_width() -> None:
    from sglang.srt.runtime_context import get_context

    with published():
        worker = adaptive_worker(launch_steps=3)
        switch_to_and_fro(worker, 3)
        live = get_context().resolved_server_args_dict()
        assert (live["speculative_num_steps"], live["speculative_num_draft_tokens"]) == (1, 2), live


def another_source_in_between_keeps_its_place_in_the_override_log() -> None:
    from sglang.srt.runtime_context import get_context

    with published():
        worker = adaptive_worker(launch_steps=3)
        switch_to_and_fro(worker, 1)
        get_context().override("someone", speculative_num_steps=9, decode_log_interval=7)
        live = get_context().resolved_server_args_dict()
        assert (live["speculative_num_steps"], live["decode_log_interval"]) == (9, 7), live
        switch_to_and_fro(worker, 1)
        live = get_context().resolved_server_args_dict()
        assert (live["speculative_num_steps"], live["decode_log_interval"]) == (3, 7), live


def switch_to_and_fro(worker: Any, times: int) -> None:
    """Switch between the worker's two tiers, *times* times in total."""
    states = {state.speculative_num_steps: state for state in worker.adaptive_controller._states.values()}
    low, high = sorted(states)
    for _ in range(times):
        worker.apply_runtime_state(states[low if worker.speculative_num_steps == high else high])
