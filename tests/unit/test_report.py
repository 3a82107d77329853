"""``sglang-adaptive report``: figures are those of the files, and what is no result is refused."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server.compare import main as compare
from sglang_adaptive.demo.report import build
from sglang_adaptive.report.command import main
from tests.demo_runs import ema_run, plain_run, static_run

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CELLS = [str(path) for path in sorted((RESULTS / "h200").glob("cells-*.json"))]
SIMULATION = RESULTS / "simulation" / "simulate.json"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    runs = [plain_run(), static_run(1, 2.0), static_run(3, 1.25), ema_run()]
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(build(runs, [], [], seconds=60.0, load=0.5, argv=["--json", "demo.json"])))
    return path


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of the tables' rows of a Markdown page by the row's name; of equal names the first."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip("* ") for cell in line.strip("|").split(" | "))
            found.setdefault(name, cells)
    return found


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_shares_of_server_benchmarks_are_those_of_their_own_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(printed(capsys, *CELLS))
    assert compare(CELLS) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) > 5
    for line in lines:
        name, cells, mean, worst = re.split(r"\s{2,}", line.strip())
        assert found[name] == [cells, mean, worst]


def test_a_cell_more_and_keys_that_are_new_are_no_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = {"steps": 3, "batch_size": 2, "tokens_per_second": 100.0, "median": 3, "spread": [1, 2]}
    cells = [cell, {**cell, "tokens_per_second": 300.0}, {**cell, "steps": -1, "tokens_per_second": 190.0}]
    path = tmp_path / "new.json"
    path.write_text(json.dumps({"label": "mine", "cells": cells, "repetitions": 2, "workload": {"name": "chat"}}))
    found = rows(printed(capsys, str(path)))
    assert found["mine"] == ["1", "0.950", "0.950"]  # of the mean of the two
    assert found["batch 2"] == ["200", "190 (0.95)"]


def test_demo_figures(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, str(demo))
    assert "In every run all 12 requests came out token for token as without speculation" in page
    speed = next(line for line in page.splitlines() if line.startswith("| **EMA**"))
    assert speed.split(" | ")[-3:] == ["**20**", "**2.00**", "**1.25** |"]  # 20 tokens a second, 16 at depth 3
    data = json.loads(demo.read_text())
    demo.write_text(json.dumps({**data, "failures": ["EMA: the depth never moved"]}))
    assert "FAILED: EMA: the depth never moved" in printed(capsys, str(demo))


def test_simulation_figures(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(SIMULATION.read_text())
    page = printed(capsys, str(SIMULATION))
    share = data["suites"]["both"]["policies"]["throughput"]
    assert f"{share['mean']:.3f} ({share['worst']:.3f})" in rows(page)["both"]
    met = sum(target["met"] for target in data["targets"])
    assert f"{met} of {len(data['targets'])} targets met." in page


class Page(HTMLParser):
    """Checks that elements close in order, and collects what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [value or "" for name, value in attributes if name in ("src", "href", "srcset")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing_from_outside(demo: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "all.html", tmp_path / "all.md"
    words = [str(demo), *CELLS, str(SIMULATION), "--html", str(path), "--md", str(other), "--title", "A <b> & C"]
    assert main(words) == 0
    text = path.read_text()
    page = Page(text)
    assert not page.open and not page.fetched and "@import" not in text and "url(" not in text
    assert page.seen.count("svg") == 3 and page.seen.count("h2") == 3
    assert "<title>A &lt;b&gt; &amp; C</title>" in text
    assert other.read_text().startswith("# A <b> & C\n")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "is no result known here; expected one of sglang-adaptive demo --json"),
        ('{"policy": "ema"}', "is no result known here"),
        ('{"label": "x", "cells": [{"steps": 1}]}', "is not a whole server benchmark result ('batch_size' is missing)"),
        ('{"label": "x", "cells": 3}', "is not a whole server benchmark result"),
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
