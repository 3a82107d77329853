"""Plain data parallelism: every replica adapts by itself, accepts what is sent to the server, and loses nothing."""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS
from tests.engine.workload import Case, Expected, grown, replica_states, run


def test_two_replicas_adapt_without_loss(
    replicas: CpuServer, expected: Expected, easy: list[str], hard: list[str]
) -> None:
    assert [(state["dp_rank"], state["active"]) for state in replica_states(replicas)] == [(0, True), (1, True)]
    cases = [Case(prompt) for pair in zip(easy[:2], hard[:2], strict=True) for prompt in pair]
    wanted = expected(cases)
    for steps in (TIERS[0], TIERS[-1]):
        assert replicas.force_steps(steps) == [True, True]
        before = replica_states(replicas)
        assert run(replicas, cases, at_once=4) == wanted
        after = replica_states(replicas)
        assert [state["forced_steps"] for state in after] == [steps, steps]
        for old, new in zip(before, after, strict=True):
            assert set(grown(old["rounds_by_tier"], new["rounds_by_tier"])) == {str(steps)}
    assert replicas.force_steps(None) == [True, True]
    held = replica_states(replicas)
    assert run(replicas, cases, at_once=4) == wanted
    for old, new in zip(held, replica_states(replicas), strict=True):
        assert new["forced_steps"] is None and grown(old["rounds_by_tier"], new["rounds_by_tier"])
        assert all(position["probability"] > 0 for position in new["acceptance"])


def test_a_configuration_reaches_both_replicas(replicas: CpuServer, easy: list[str]) -> None:
    fewer = {"policy": "throughput", "throughput": {"candidate_steps": [1, 3], "lookup": False}}
    assert replicas.configure(fewer) == [True, True]
    run(replicas, [Case(prompt) for prompt in easy[:4]], at_once=4)
    assert [state["current_steps"] in (1, 3) for state in replica_states(replicas)] == [True, True]
