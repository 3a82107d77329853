"""A policy that raises in a running server loses its decisions and nothing else."""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.fault import MESSAGE
from tests.engine.servers import FAULT_AFTER, LAUNCH_STEPS
from tests.engine.workload import Case, Expected, adaptive, require_whole_pool, rounds, run


def test_requests_go_on_at_the_launch_depth(
    faulty: CpuServer, expected: Expected, easy: list[str], hard: list[str]
) -> None:
    cases = [Case(prompt) for prompt in (*easy[:3], *hard[:3])]
    wanted = expected(cases)
    while not adaptive(faulty)["degraded"]:
        assert run(faulty, cases, at_once=1) == wanted  # another test reads these rounds in the log, one by one
    begin = rounds(faulty)
    assert run(faulty, cases, at_once=3) == wanted
    require_whole_pool(faulty)

    state = adaptive(faulty)
    assert state["active"] is True and state["degraded"] is True
    assert sum(state["rounds_by_tier"].values()) > FAULT_AFTER
    assert state["recent_switches"][-1]["cause"] == "degraded"
    assert state["degraded_reason"] == f"policy ema raised RuntimeError: {MESSAGE}"
    assert state["current_steps"] == LAUNCH_STEPS
    assert rounds(faulty) > begin
    log = faulty.log_path.read_text()
    assert log.count(f"raised RuntimeError: {MESSAGE}") == 1
    assert log.splitlines().count(f"RuntimeError: {MESSAGE}") == 1  # the end of a traceback
