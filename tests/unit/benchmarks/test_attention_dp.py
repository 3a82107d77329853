"""Two ranks: results from their logs and rates, and how their servers start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention_dp import LAYOUTS, NEW_TOKENS, PHASES, REQUESTS, Place, _until_logged, ask, ratios
from benchmarks.harness import round_log


def test_ranks_that_ran_the_same_steps_are_identical() -> None:
    found = round_log.compare([[(8, 3), (8, 0), (0, 0)], [(1, 3), (0, 0), (4, 0), (4, 1)]])
    assert (found["identical"], found["rounds"], found["switches"]) == (True, 3, 1)
    assert found["rounds_by_depth"] == {"0": 2, "3": 1}
    assert (found["rounds_with_an_idle_rank"], found["rounds_with_four_times_the_requests"]) == (2, 1)
    assert found["largest_batch"] == 8


def test_ranks_that_differ_are_told_with_the_round() -> None:
    found = round_log.compare([[(8, 3), (8, 0)], [(1, 3), (1, 1)]])
    assert not found["identical"]
    assert found["first_unlike"] == {"round": 1, "ranks": [[8, 0], [1, 1]]}
    assert not round_log.compare([[(1, 3)] * 9, [(1, 3)]])["identical"]  # one of them has stopped
    assert not round_log.compare([[], []])["identical"]


def test_logs_leave_out_a_line_that_is_half_written(tmp_path: Path) -> None:
    log = tmp_path / "rounds-of-rank-"
    Path(f"{log}0").write_text("12 3\n11 0\n1")
    assert round_log.logs(log) == [[(12, 3), (11, 0)], []]


def test_rounds_are_waited_for_until_the_budget_ends(tmp_path: Path) -> None:
    _until_logged(tmp_path / "rounds-of-rank-", 5, 0.0, lambda: pytest.fail("no rank hangs"))


def test_the_policy_is_compared_with_the_best_held_steps() -> None:
    turns = [
        {"passes": {name: {"rate": rate} for name, rate in rates.items()}}
        for rates in (
            {"static-0": 100.0, "static-3": 200.0, "policy": 194.0},
            {"static-0": 110.0, "static-3": 190.0, "policy": 196.0},
            {"none": 130.0},
        )
    ]
    found = ratios({"a": turns})["a"]
    assert found["best"] == "static-3"
    assert found["policy_over_best"] == pytest.approx(1.0)
    assert found["policy_over_none"] == pytest.approx(1.5)
    assert found["spread"] == pytest.approx((10 / 105 + 10 / 195 + 2 / 195) / 3)
    assert found["best_held"] == ["static-3", "static-0"]


def test_each_request_goes_to_its_rank() -> None:
    asked: list[tuple[int, int]] = []

    class Server:
        def post(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
            asked.append((body["routed_dp_rank"], len(body["input_ids"])))
            return [{"output_ids": [body["routed_dp_rank"]] * NEW_TOKENS} for _ in body["input_ids"]]

    outputs = ask(Server(), [[1, 2]] * 16, "skewed")  # type: ignore[arg-type]
    assert sorted(asked) == [(0, 14), (1, 2)]
    assert [text[0] for text in outputs] == [int(at % 8 == 0) for at in range(16)]


@pytest.mark.parametrize("name", sorted({name for _, names in PHASES.values() for name in names}))
def test_every_server_has_two_ranks_and_logs_where_it_has_to(tmp_path: Path, name: str) -> None:
    server = Place(tmp_path, cpu=False).made(name)
    assert "--tp-size" in server.command
    assert ("--enable-dp-attention" in server.command) == (name != "liar-tp")
    variables = server.environment
    logged = round_log.ENTRY_POINT in variables["SGLANG_PLUGINS"].split(",")
    assert logged == (name not in ("reference", "none"))
    assert float(variables.get(round_log.LIE, 0)) == (3.0 if name.startswith("liar") else 0.0)
    assert server.name == name and server.log.name == f"{name}.log"


def test_layouts_leave_a_rank_idle() -> None:
    used = {name: {rank(at) for at in range(REQUESTS)} for name, rank in LAYOUTS.items()}
    assert used == {"balanced": {0, 1}, "skewed": {0, 1}, "rank 1 idle": {0}, "rank 0 idle": {1}}
