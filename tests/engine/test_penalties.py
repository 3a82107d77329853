"""Penalties and logit processors on servers: exact with this package, and not with SGLang's own verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests import checks
from tests.engine import servers
from tests.engine.fault import write_plugin
from tests.engine.workload import Case, Output, require_whole_pool, rotating_depth, run

FREQUENCY = 1.5
OFTEN = """
def register():
    from sglang.srt.managers import scheduler

    scheduler.TEST_RETRACT, scheduler.TEST_RETRACT_INTERVAL = True, 7
"""
"""SGLang reads its own variables for this as it is imported, before a server is forked."""


@pytest.fixture
def penalised(easy: list[str], hard: list[str]) -> list[Case]:
    """Greedy requests with a penalty that changes what follows a token."""
    sampling = {"ignore_eos": True, "frequency_penalty": FREQUENCY}
    return [Case(prompt, sampling=sampling) for prompt in (*easy[:5], *hard[:5])]


def test_penalised_text_is_that_without_speculation(
    ema: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    with rotating_depth(ema):
        assert run(ema, penalised, at_once=4) == expected(penalised)
    require_whole_pool(ema)


def test_a_retracted_request_keeps_its_counts(
    tmp_path: Path, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    """A request comes back with a prefill of what it has written."""
    config = {"throughput": {"candidate_steps": list(servers.TIERS)}, "warm_up": False}
    arguments = servers.speculation(*servers.adapting(tmp_path, "retracting", config))
    often = write_plugin(tmp_path / "plugin", "often:register", OFTEN)
    with servers.server(tmp_path, "retracting", *arguments, **often) as server:
        with rotating_depth(server):
            assert run(server, penalised, at_once=5) == expected(penalised)
        require_whole_pool(server)
        assert server.log_path.read_text().count("Testing retraction.") > 5


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="0.5.23: penalties lag by the tokens of a round")
def test_that_of_stock_speculation(
    static: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    assert run(static, penalised, at_once=1) == expected(penalised)


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="0.5.23: DFLASH verifies without penalties")
def test_that_of_a_block_drafter(
    blocks: CpuServer, expected: Callable[[list[Case]], list[Output]], penalised: list[Case]
) -> None:
    assert run(blocks, penalised, at_once=1) == expected(penalised)


@pytest.mark.parametrize(
    ("processor", "parameters"),
    [("Banned", {"banned": [68, 70, 72]}), ("Countdown", {"token": 71})],
    ids=["of every row", "of its request"],
)
def test_processors_of_logits(
    ema: CpuServer, plain: CpuServer, easy: list[str], processor: str, parameters: dict[str, Any]
) -> None:
    # Importing SGLang's class here would take longer than the test.
    sent = f"import json; from tests.engine import processors as all; print(json.dumps(all.to_str(all.{processor})))"
    custom = checks.scripted(sent)

    def texts(server: CpuServer, prompts: Sequence[str]) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True, "custom_params": parameters}
        body = {"text": prompts, "sampling_params": sampling, "custom_logit_processor": custom}
        return [answer["output_ids"] for answer in server.post("/generate", body)]

    wanted = texts(plain, easy[:3])
    with rotating_depth(ema):
        assert texts(ema, easy[:3]) == wanted
