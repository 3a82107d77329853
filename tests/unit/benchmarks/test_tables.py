"""Tables built from results: a row's contents, and gaps where nothing was measured."""

from __future__ import annotations

from typing import Any

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
