"""Drafts on a GPU match stock SGLang's: acceptance is not simulated, and the draft's inputs are not mixed up.

FlashInfer runs with SGLang's own plans: this package's have smaller query tiles, which round differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_adaptive.sglang_plugin.env import OFF
from tests.engine.workload import Case, answers
from tests.gpu.servers import STARTS, TIERS, Line, serving_together, smollm2_pair, tiny_pair

STATIC = (3, 7)
CASES = [Case(f"{start} the", max_new_tokens=200) for start in STARTS]


def rounds(found: list[dict[str, Any]]) -> int:
    return sum(answer["meta_info"]["spec_verify_ct"] for answer in found)


@pytest.fixture(scope="module", params=["fa3", "flashinfer"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(backend: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return an adaptive server's answers and static ones', by depth and requests at a time."""
    folder = tmp_path_factory.mktemp("servers")
    models = smollm2_pair() if backend == "flashinfer" else tiny_pair(folder, "fa3")  # it needs heads of 64 or more
    stock_plans = {OFF: "device-plans"}
    lines = [Line(folder / "adaptive.log", models, backend, TIERS, stock_plans)]
    lines += [Line(folder / f"static-{steps}.log", models, backend, steps) for steps in STATIC]
    ours, theirs = {}, {}
    with serving_together(*lines) as (adaptive, *static):
        for at_once in (1, len(CASES)):
            for steps in (*STATIC, *reversed(STATIC)):  # the second pass reaches each depth from others
                adaptive.force_steps(steps)
                ours[steps, at_once] = answers(adaptive, CASES, at_once)
            for steps, client in zip(STATIC, static, strict=True):
                theirs[steps, at_once] = answers(client, CASES, at_once)
    return ours, theirs


@pytest.mark.parametrize("steps", STATIC)
@pytest.mark.parametrize("at_once", [1, len(CASES)])
def test_accept_lengths_and_outputs_are_those_of_a_stock_server(
    steps: int, at_once: int, found: tuple[dict[Any, Any], dict[Any, Any]],
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    mine, theirs = (answered[steps, at_once] for answered in found)
    record_property("rounds", [rounds(mine), rounds(theirs)])
    same = sum(one["output_ids"] == other["output_ids"] for one, other in zip(mine, theirs, strict=True))
    assert rounds(theirs) < 0.8 * sum(answer["meta_info"]["completion_tokens"] for answer in theirs)
    # Alone, a request runs the same kernels on the same shapes; in a batch, bf16 ties may differ.
    allowed = 0.0 if at_once == 1 else 0.03
    assert abs(rounds(mine) - rounds(theirs)) <= allowed * rounds(theirs)
    assert same >= (1 - 2 * allowed) * len(CASES) - 1e-9
