"""Policies on simulated acceptance: the contenders, the file's rows, and comparison of files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.compare import table
from benchmarks.harness.results import SIMULATED, Report
from benchmarks.harness.start import POLICIES
from benchmarks.policies import SCHEMA, Run, cells, contenders, knows_p, row

CASES = [(1, 0.3), (1, 0.0), (8, 0.3)]
RATES = {"static-1": [100.0, 80.0, 500.0], "static-3": [90.0, 50.0, 800.0], "throughput": [99.0, 99.0, 780.0]}


def servers(*names: str) -> Any:
    return [SimpleNamespace(name=name, policy=POLICIES[name]) for name in names]


def test_held_depths_stand_for_static_servers() -> None:
    three = servers("none", "sglang-ema", "throughput")
    found = contenders(three, [0, 3])
    assert [one.name for one in found] == ["none", "static-0", "static-3", "sglang-ema", "throughput"]
    assert [one.name for one in found if knows_p(one)] == ["static-3", "sglang-ema", "throughput"]
    assert found[1].server is three[2]


def test_cells_ask_all_in_turn_and_those_without_p_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []
    process = SimpleNamespace(declared=None)

    def batch_pass(contender: Any, requests: int, tokens: int) -> dict[str, Any]:
        asked.append((contender.name, process.declared.p))
        return one_pass(100.0 + len(asked))

    monkeypatch.setattr("benchmarks.policies.batch_pass", batch_pass)
    both = servers("none", "throughput")
    for server in both:
        server.process = process
    given: Any = SimpleNamespace(batches=[8], p=[0.6], decay=1.0, tokens=9, repeats=2, depths=[])
    report = Report(tmp_path / "x.json", "policies", [], rows=[{"workload": "earlier"}])
    cells(Run(both, given, report, end=float("inf")))
    assert asked == [("none", 0.0), ("throughput", 0.6), ("throughput", 0.0)] * 2
    earlier, *found = json.loads(report.path.read_text())["rows"]
    assert earlier == {"workload": "earlier"}
    assert [(one["contender"], one["case"]["p"], len(one["passes"])) for one in found] == [
        ("none", None, 2), ("throughput", 0.6, 2), ("throughput", 0.0, 2),
    ]  # fmt: skip
    assert found[0]["tokens_per_second"] == (101 + 104) / 2 and "rate" not in found[0]["passes"][0]


def one_pass(rate: float) -> dict[str, Any]:
    return {"tokens_per_second": rate, "rounds": 10, "seconds": 1.0, "accept_length": 2.0}


def document(of: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "name": "x", "acceptance": SIMULATED, "rows": of}


def measured() -> list[dict[str, Any]]:
    found = [
        row("cells", name, {"batch_size": batch, "p": p}, [one_pass(rate)])
        for name, of in RATES.items()
        for (batch, p), rate in zip(CASES, of, strict=True)
    ]
    for batch, rate in ((1, 100), (8, 700)):
        found.append(row("cells", "none", {"batch_size": batch, "p": None}, [one_pass(rate)]))
    found.append(row("cells", "static-0", {"batch_size": 1, "p": None}, [one_pass(99.0)]))
    for name, rate in (("static-1", 100.0), ("static-3", 110.0), ("sglang-ema", 80.0), ("throughput", 121.0)):
        found.append(row("acceptance", name, {"batch_size": 1}, [one_pass(rate)]))
    return found


def test_compare_prints_shares_of_the_best_static_depth(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text(json.dumps(document(measured())))
    other.write_text(json.dumps(document([one for one in measured() if one["contender"] == "throughput"])))
    lines = table([path], "cells").splitlines()
    assert lines[0] == "cells: tokens/s as a share of the case's best static depth"
    mean = next(line for line in lines if line.startswith("geometric mean of p > 0")).split()
    names = lines[1].split()[1:]
    assert float(mean[6 + names.index("throughput")]) == pytest.approx((0.99 * 0.975) ** 0.5, abs=5e-4)
    both = table([path, other], "acceptance")
    assert "throughput a" in both and "throughput b" in both and both.endswith(SIMULATED)
