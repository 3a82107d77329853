"""Tables built from results: a row's contents, and gaps where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness.texts import DIFFERENT, EQUAL, TIE
from scripts import of_results


def content(**rates: list[float]) -> dict[str, Any]:
    turns = [
        {"block": n, "passes": {name.replace("_", "-"): {"rate": rates[name][n]} for name in rates}} for n in (0, 1)
    ]
    doubled = [
        {"block": n, "passes": {name: {"rate": 2 * one["rate"]} for name, one in turn["passes"].items()}}
        for n, turn in enumerate(turns)
    ]
    return {"batches": {"16": doubled, "1": turns}}


def test_the_race_s_table_has_every_rival() -> None:
    found = content(
        none=[50, 51], static_0=[200, 200], static_1=[90, 90], static_3=[100, 102], sglang_ema=[80, 80],
        throughput=[110, 112.2],
    )  # fmt: skip
    lines = list(of_results.race(found))
    assert "3 steps, the best over all" in lines[0]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "16", "all, geometric mean"]
    cells = [cell.strip() for cell in lines[2].split("|")]
    assert cells[2] == "111" and cells[3].startswith("1.100 ± 0.000 (3 steps)") and cells[4] == "1.100 ± 0.000"
    assert cells[6].startswith("1.389 ±") and cells[7] == "2"
    assert "| 3 steps | 101 | 202 |" in list(of_results.every_rate(found))


def test_a_table_leaves_out_what_was_not_measured() -> None:
    lines = list(of_results.race(content(static_3=[100, 100], throughput=[99, 99])))
    assert "over 3 steps" in lines[0] and "no speculation" not in lines[0] and "EMA" not in lines[0]
    assert len({line.count("|") for line in lines}) == 1
    assert list(of_results.race({}))[-1].startswith("| all")
    assert len(list(of_results.every_rate({}))) == 2 and list(of_results.host_time({})) and list(of_results.poisson({}))


def test_equality_host_time_and_arrivals_are_told() -> None:
    judged = {"questions": 4, "equal": 2, "tie": 2, "different": 0, "worst_gap": 0.1, "rounds": 9, "switches": 7}
    lines = list(of_results.equality({"by policy": judged, "reference": {}, "plan": {}}))
    assert len(lines) == 3
    assert lines[0].count("|") == lines[2].count("|") and lines[2] == "| by policy | 4 | 2 | 2 | 0 | 0.100 | 9 | 7 |"
    held = {"batches": {"1": [{"passes": {"stock": {"rate": 100}, "held": {"rate": 99}}}]}}
    lines = list(
        of_results.host_time({"host_us_a_round": {"1": {"ours": 31.2, "in_place_of_sglang_s": 5}}, "steps 3": held})
    )
    assert lines[2].endswith("| 31 |") and lines[-1] == "| 3 steps held, over stock SGLang | 0.990 |"
    hooks = {"around b: fast_path.x:g": {"us": 20.0}, "before a: scheduler.x:f": {"us": 5.0}}
    former = {"ours": 31.2, "in_place_of_sglang_s": 0.0, "by_hook": hooks}
    assert [line[-6:] for line in of_results.host_time({"host_us_a_round": {"1": former}})][2:] == ["| 11 |", "| 20 |"]
    one = {"latency": {"p50_ms": 100, "p95_ms": 200}, "first_token": {"p50_ms": 10, "p95_ms": 20}}
    turns = [{"passes": {"none": {**one, "group_ms": [20, 20]}, "throughput": {**one, "group_ms": [10, 10]}}}]
    assert "2.000 ± 0.000" in list(of_results.poisson({"turns": turns}))[2]


def test_architectures_have_what_was_measured_and_no_row_of_the_rest(tmp_path: Path) -> None:
    run = {"how": "depth 0", "tokens": 48, EQUAL: 30, TIE: 2, DIFFERENT: 0, "accepted": 7, "unlikely_tokens": 0.02}
    about = {"gpu": "a GPU", "date": "2026-11-23", "family": "llama", "models": "Llama", "algorithm": "EAGLE3"}
    measured = {
        **{**about, "draft": "EAGLE-3", "error": "Error: a | b", "runs": [run]},
        "startup": {"late_kernel_loads": ["kernel"]},
        "reference": {"unlikely_tokens": 0.01},
    }
    (tmp_path / "llama.json").write_text(json.dumps(measured))
    (tmp_path / "unknown.json").write_text(json.dumps(measured))
    *_, row = of_results.architectures(tmp_path)
    assert len(list(of_results.architectures(tmp_path))) == 5
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert "30, 2, 0" in cells
    assert "2.0%, 1.0%" in cells
    assert "failed: Error: a / b" in cells
    assert len(list(of_results.architectures(tmp_path / "none"))) == 1
