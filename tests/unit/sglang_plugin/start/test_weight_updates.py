"""New weights: graphs of every depth are captured again, and earlier acceptance counts for little."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.states import Device
from sglang_adaptive.sglang_plugin.rounds import Rounds
from tests import fakes
from tests.fakes import Sized, Worker, ema, serve

SIZES = [1, 2, 4]


def throughput(depths: tuple[int, ...], device: Device | None = None) -> tuple[AdaptiveController, Worker]:
    worker, policy = Worker(), ThroughputPolicy(3, ThroughputOptions(candidate_steps=depths))
    controller = fakes.controller(policy, worker=worker, device=device)
    worker.built.clear()
    return controller, worker


def update(controller: AdaptiveController, *, success: bool = True, recapture: bool = False) -> None:
    result, request = SimpleNamespace(success=success), SimpleNamespace(recapture_cuda_graph=recapture)
    assert Rounds(None, controller).update_weights(lambda *_: result, None, request) is result


def test_every_depth_is_captured_anew_at_its_batch_sizes() -> None:
    controller, worker = throughput((0, 1, 3), Sized(SIZES))
    before, graphs = controller.states.by_steps, dict(controller.states.captured.graphs)
    update(controller, recapture=True)
    assert {steps: sizes for steps, _, sizes in worker.built} == {steps: list(graphs[steps] or ()) for steps in graphs}
    assert controller.states.tiers == (0, 1, 3) and not {*map(id, before)} & {*map(id, controller.states.by_steps)}
    assert worker.speculative_num_steps == 3 and worker.live is controller.states.by_steps[-1]
    assert dict(controller.states.captured.graphs) == graphs


@pytest.mark.parametrize(
    ("depths", "device", "success", "recapture"),
    [
        ((0, 1, 3), Sized(SIZES), True, False),
        ((0, 1, 3), Sized(SIZES), False, True),
        ((0, 3), None, True, True),
        ((3,), Sized(SIZES), True, True),
    ],
    ids=["not asked for", "failed", "no graphs", "one depth"],
)
def test_nothing_is_captured(depths: tuple[int, ...], device: Device | None, success: bool, recapture: bool) -> None:
    controller, worker = throughput(depths, device)
    update(controller, success=success, recapture=recapture)
    assert not worker.built


@pytest.mark.parametrize("success", [True, False])
def test_what_was_learnt_of_the_draft_counts_for_little(success: bool) -> None:
    """Also after a failed update: it may have failed on only one rank."""
    controller, _ = throughput((3,))

    def trials() -> float:
        found: float = controller.snapshot()["acceptance"][0]["trials"]
        return found

    serve(controller, 300, 0.67, batch_size=8)
    before = trials()
    update(controller, success=success)
    assert trials() < 0.1 * before


def test_policy_without_such_a_notion_goes_on() -> None:
    update(ema())
