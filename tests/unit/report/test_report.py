"""``sglang-adaptive report``: figures match the files, and input that is not a result is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import table as compare
from benchmarks.harness.results import SIMULATED
from benchmarks.policies import SCHEMA, row
from sglang_adaptive.lab.demo.report import build
from sglang_adaptive.lab.simulate.command import main as simulate
from sglang_adaptive.lab.traces import write
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import shipped_config
from sglang_adaptive.report.command import main
from sglang_adaptive.runtime.round_trace import RoundTrace
from tests.demo_runs import ema_run, plain_run, static_run
from tests.drawn_texts import drawn_trace
from tests.html_pages import Page

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
CELLS = [str(RESULTS / "h200" / "cells.json")]
SIMULATION = RESULTS / "simulation" / "simulate.json"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    runs = [plain_run(), static_run(1, 2.0), static_run(3, 1.25), ema_run()]
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(build(runs, [], [], seconds=60.0, load=0.5, argv=["--json", "demo.json"])))
    return path


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown page's table rows by row name; for equal names, the first."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip("* ") for cell in line.strip("|").split(" | "))
            found.setdefault(name, cells)
    return found


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_shares_are_those_of_the_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(printed(capsys, *CELLS))
    given = rows((RESULTS.parents[1] / "docs" / "measurements.md").read_text())
    (figures,) = [cells for row, cells in given.items() if row.startswith("`throughput` policy")]
    assert found["throughput"][1:] == figures


RATES = {"static-1": [100.0, 80.0, 500.0], "static-3": [90.0, 50.0, 800.0], "throughput": [99.0, 99.0, 780.0]}
LATENCY = {"p50_ms": 5.0, "p95_ms": 9.0, "p99_ms": 10.0, "mean_ms": 6.0, "count": 3}


def benchmark_document() -> dict[str, Any]:
    """Return a result of ``python -m benchmarks.policies`` with several workloads."""

    def one(rate: float, **more: Any) -> dict[str, Any]:
        return {"tokens_per_second": rate, "rounds": 10, "seconds": 1.0, "accept_length": 2.0, **more}

    cases = [{"batch_size": 1, "p": 0.3}, {"batch_size": 1, "p": 0.9}, {"batch_size": 8, "p": 0.3}]
    found = [
        row("cells", name, case, [one(rate)])
        for name, of in RATES.items()
        for case, rate in zip(cases, of, strict=True)
    ]
    found.append(row("cells", "none", {"batch_size": 1, "p": None}, [one(60.0)]))
    steady = row("steady", "throughput", {"batch_size": 8, "p": 0.7}, [one(700.0, inter_token_latency=LATENCY)])
    found.append({**steady, "switches_per_hour": 12.4, "itl_p95_against_static": 1.0123, "new_figure": [1]})
    arrivals = [one(50.0, inter_token_latency=LATENCY), one(52.0, inter_token_latency={**LATENCY, "p95_ms": 11.0})]
    found.append(row("open loop", "throughput", {"share": 0.3, "requests_per_second": 2.5}, arrivals))
    origin = {"command": "python -m benchmarks.policies matrix", "gpu": "NVIDIA H200", "cpu": "CPU", "versions": {}}
    notes = ["load: out of time"]
    return {
        "schema": SCHEMA, "name": "x", "acceptance": SIMULATED, "provenance": origin, "plan": {}, "servers": {},
        "notes": notes, "rows": found,
    }  # fmt: skip


def test_shares_of_the_server_benchmark_are_those_of_its_own_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.json"
    path.write_text(json.dumps(benchmark_document()))
    page = printed(capsys, str(path))
    found, lines = rows(page), compare([path], "cells").splitlines()
    means, worst = (next(line.split() for line in lines if line.startswith(name)) for name in ("geometric", "worst"))
    for name, mean, least in zip(lines[1].split()[1:], means[2:], worst[1:], strict=True):
        assert found[name] == ["3" if name != "none" else "2", mean, least]  # "none" has no figure at batch 8
    assert found["throughput: batch 8, p 0.7"] == ["12", "1.012"]
    assert found["throughput: share 0.3, requests/s 2.5"] == ["5.0", "10.0", "10.0"]
    assert "Server benchmark on NVIDIA H200" in page and "Note: load: out of time" in page


def test_contenders_of_several_files_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, factor in zip(paths, (1.0, 0.5), strict=True):
        document = benchmark_document()
        ours = [row for row in document["rows"] if row["workload"] == "cells" and row["contender"] == "throughput"]
        document["rows"] = document["rows"][:6] if factor == 1.0 else []
        document["rows"] += [{**row, "tokens_per_second": factor * row["tokens_per_second"]} for row in ours]
        path.write_text(json.dumps(document))
    found = rows(printed(capsys, *map(str, paths)))
    assert float(found["throughput (a)"][1]) == pytest.approx(2 * float(found["throughput (b)"][1]), abs=0.002)
    assert found["static-1"][0] == "3"


def test_demo_figures(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, str(demo))
    assert "In every run all 12 requests came out token for token as without speculation" in page
    speed = next(line for line in page.splitlines() if line.startswith("| **EMA**"))
    assert speed.split(" | ")[-3:] == ["**20**", "**2.00**", "**1.25** |"]  # 20 tokens per second, 16 at depth 3
    data = json.loads(demo.read_text())
    demo.write_text(json.dumps({**data, "failures": ["EMA: the depth never moved"]}))
    assert "FAILED: EMA: the depth never moved" in printed(capsys, str(demo))


def test_simulation_figures(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(SIMULATION.read_text())
    page = printed(capsys, str(SIMULATION))
    for figure, title in (("mean", "mean over the traces"), ("worst", "worst trace")):
        shares = [f"{found[figure]:.3f}" for found in data["suites"]["both"]["policies"].values()]
        assert rows(page.split(title, maxsplit=1)[1])["both"] == shares
    met = sum(target["met"] for target in data["targets"])
    assert f"{met} of {len(data['targets'])} targets met." in page


LADDER = (0, 1, 2, 3, 5, 7)


def simulated(folder: Path, *words: str) -> dict[str, Any]:
    """Run a simulation and return its report.json from *folder*."""
    path = folder / "report.json"
    assert simulate([*words, "--rounds", "100", "--no-progress", "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("ran", [(0, 3, 7), (3, 9)], ids=str)
def test_figures_of_traffic(ran: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = RoundTrace(tmp_path / "rounds", 1e6)
    for number in range(600):
        steps = ran[number // 100 % len(ran)]
        counts = [min(steps, number % 5), min(steps, number % 3)]
        trace.add(RoundObservation(steps, counts, 2, requests=["a", f"b{number // 50}"]))
    trace.close()
    data = simulated(tmp_path, "--trace", str(tmp_path / "rounds"), "--policy", "throughput")
    told = capsys.readouterr().out
    page = printed(capsys, str(tmp_path / "report.json"))
    found = rows(page)
    for depth in data["depths"]:
        assert found[f"{depth['steps']} steps"][0] == str(depth["rounds_run"])
    (batch,) = data["batches"]
    assert found["throughput"][0] == f"{batch['over_best_single']['throughput']:.3f}"
    assert found[f"always {batch['best_single']}"][0] == "1.000"
    assert "600 rounds, 13 requests, batch 2 to 2." in page
    unknown = [steps for steps in ran if steps not in LADDER]
    for text in (told, page):
        assert ("Rounds ran at 9 steps, for which " in text) is bool(unknown)
        assert "Only 0 rounds" not in text


def test_figures_of_recorded_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "texts.npz", drawn_trace({"easy": (0.95, 0.8), "hard": (0.4, 0.2)}, requests=8, tokens=60))
    profile = str(shipped_config("profiles") / "h200-llama31-8b-eagle3-fa3.json")
    words = ("--suite", "real", "--texts", str(tmp_path / "texts.npz"), "--profile", profile, "--policy", "throughput")
    data = simulated(tmp_path, *words)
    capsys.readouterr()
    page = printed(capsys, str(tmp_path / "report.json"))
    cell = data["cells"][0]
    share = cell["scores"]["throughput"]["over_single"]
    assert f"{share:.3f} ({share:.3f})" in rows(page)[f"batch {cell['load']}, {cell['scene']}"]
    assert f" of {sum(gate['bound'] is not None for gate in data['gates'])} gates met." in page


def test_figures_of_recorded_text_as_the_benchmark_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    path = RESULTS / "real" / "real.json"
    data = json.loads(path.read_text())
    column = data["columns"].index("throughput over best single")
    first = data["cells"][0]
    shares = [cell[column] for cell in data["cells"] if cell[:3] == first[:3]]
    found = rows(printed(capsys, str(path)))[f"batch {first[2]}, {first[1]}"]
    assert f"{sum(shares) / len(shares):.3f} ({min(shares):.3f})" in found


def test_page_is_whole_and_needs_nothing_from_outside(demo: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "all.html", tmp_path / "all.md"
    words = [str(demo), *CELLS, str(SIMULATION), "--html", str(path), "--md", str(other), "--title", "A <b> & C"]
    assert main(words) == 0
    text = path.read_text()
    page = Page(text)
    assert page.whole and not page.fetched
    assert page.seen.count("svg") == 3 and page.seen.count("h2") == 3
    assert "<title>A &lt;b&gt; &amp; C</title>" in text
    assert other.read_text().startswith("# A <b> & C\n")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a known result; expected one of sglang-adaptive demo --json"),
        ('{"policy": "ema"}', "is not a known result"),
        ('{"label": "x", "cells": [{"steps": 1}]}', "is not a known result"),
        (
            '{"schema": 2, "acceptance": "x", "provenance": {}, "rows": [{}]}',
            "is not a complete server benchmark result",
        ),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    assert main([str(path)]) == 2
    said: Any = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "odd.json: " + told in said.err


def test_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere.json"]) == 2
    told = "sglang-adaptive report: error: nowhere.json: cannot be read (No such file or directory)\n"
    assert capsys.readouterr().err == told
