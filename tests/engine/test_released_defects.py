"""Defects of SGLang 0.5.23's adaptive speculation that show over HTTP: stock fails the checks that ours passes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.policy.ema import AdaptiveStepSlot, SlotConfig
from tests.engine.servers import FAULT_AFTER, JUMPY_SLOT, LAUNCH_STEPS, LOG_INTERVAL, TIERS
from tests.engine.workload import Case, rotating_depth, rounds, run


def stock_fails(why: str) -> Any:
    return pytest.param("stock", marks=pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"0.5.23: {why}"))


@pytest.mark.parametrize("name", ["ema", stock_fails("counts every round at the depth of the launch")])
def test_no_more_drafts_are_accepted_than_were_proposed(server: CpuServer, easy: list[str]) -> None:
    for prompt in easy[:4]:
        meta = Case(prompt, max_new_tokens=64).whole(server)["meta_info"]
        assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
        assert 0 <= meta["spec_accept_rate"] <= 1


@pytest.mark.parametrize("name", ["faulty", stock_fails("divides by the width that the next round will have")])
def test_logged_accept_rate_is_that_of_the_depth_that_drafted(
    server: CpuServer, easy: list[str], hard: list[str]
) -> None:
    """The policy is deterministic, so the accept counts in the log show which depth drafted each round."""
    while len(logged := _reports(server)) < FAULT_AFTER:
        for prompt in (easy[0], hard[0]):
            Case(prompt, max_new_tokens=16).whole(server)
    slot, depths = AdaptiveStepSlot(LAUNCH_STEPS, SlotConfig(1, **JUMPY_SLOT)), []
    for correct, _ in logged[:FAULT_AFTER]:
        depths.append(slot.current_steps)
        slot.update([correct])
    assert len(set(depths)) > 1, "the text moved the policy nowhere"
    rates = [f"{correct / depth:.2f}" for (correct, _), depth in zip(logged, depths, strict=False)]
    assert rates == [rate for _, rate in logged[:FAULT_AFTER]]


def _reports(server: CpuServer) -> list[tuple[int, str]]:
    """Return correct drafts and accept rate of each round in the log; each had one request and its own report."""
    found = re.findall(r"accept len: ([\d.]+), accept rate: ([\d.]+)", server.log_path.read_text())
    return [(round(float(length)) - 1, rate) for length, rate in found]


def test_accept_rate_gauge_after_a_switch(ema: CpuServer, easy: list[str]) -> None:
    """One report's interval starts with deep rounds and ends with zero-step rounds."""
    _fill_interval(ema, easy[0])
    ema.force_steps(TIERS[-1])
    deep = Case(easy[0], max_new_tokens=LOG_INTERVAL - 2).whole(ema)["meta_info"]
    _fill_interval(ema, easy[0])
    ema.force_steps(None)
    proposed = TIERS[-1] * deep["spec_verify_ct"]
    assert deep["spec_num_correct_drafts"] > 0
    assert _gauge(ema, "spec_accept_rate") == pytest.approx(deep["spec_num_correct_drafts"] / proposed)
    assert _gauge(ema, "spec_num_steps") == 0


def _fill_interval(server: CpuServer, prompt: str) -> None:
    """Run zero-step rounds, one token each, until the scheduler reports."""
    server.force_steps(0)
    missing = -rounds(server) % LOG_INTERVAL
    if missing:
        Case(prompt, max_new_tokens=1 + missing).whole(server)  # the prefill gives the first token
    assert rounds(server) % LOG_INTERVAL == 0


def _gauge(server: CpuServer, name: str) -> float:
    found = re.search(rf"^sglang:{name}{{.*}} (\S+)$", server.get("/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_switches_do_not_flood_the_log(ema: CpuServer, easy: list[str]) -> None:
    size = ema.log_path.stat().st_size
    with rotating_depth(ema):
        run(ema, [Case(easy[0])], at_once=1)
    with ema.log_path.open("rb") as log:
        log.seek(size)
        assert b"Switch adaptive runtime state" not in log.read()
