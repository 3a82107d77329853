"""The handler of ``adaptive_force_budget``."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

from sglang_adaptive.sglang_plugin.admin.server_info import BUDGET_KEY, ForceBudget
from tests.live_controllers import ema


def refusal(handler: ForceBudget, value: Any) -> str:
    with pytest.raises(UpdateRejected) as caught:
        handler.validate(BUDGET_KEY, value)
    return str(caught.value)


def test_a_budget_is_held_with_the_steps() -> None:
    controller = ema()
    controller.allow_budgets()
    handler = ForceBudget(controller)
    controller.force_steps(7)
    for value, budget in ((3, 3), (0, None)):
        handler.validate(BUDGET_KEY, value)
        handler.apply(BUDGET_KEY, value)
        controller.activate_step_by_batch(2)
        assert (controller.worker.speculative_num_steps, controller.choice.budget) == (7, budget)


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "2"])
def test_what_is_no_number_of_drafts_is_refused(value: Any) -> None:
    controller = ema()
    controller.allow_budgets()
    assert refusal(ForceBudget(controller), value).endswith("expected an integer from 0 on")


def test_without_leave_every_draft_is_verified() -> None:
    handler = ForceBudget(ema())
    assert refusal(handler, 1).endswith("verify equally many drafts here; the log says why")
    handler.validate(BUDGET_KEY, 0)
    assert refusal(ForceBudget(None), 0).endswith("this server's speculation is not adaptive")
