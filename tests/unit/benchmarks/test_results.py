"""Results are complete, name no machine's folders, have commands that exist, and become tables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import results
from benchmarks.harness.results import BadResult, Report, read
from scripts import of_results
from sglang_adaptive import provenance

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def test_a_report_is_read_back(tmp_path: Path) -> None:
    report = Report(
        tmp_path / "new" / "greedy.json", "served", ["drive", "--work", "/home/somebody/work"], plan={"n": 3}
    )
    report.content["batches"] = {1: [{"passes": {"none": {"rate": 1 / 3}}}]}
    report.note("a line")
    report.add(more=(1, 2))
    found = read(report.path)
    assert found["batches"]["1"][0]["passes"]["none"]["rate"] == 0.33333 and found["more"] == [1, 2]
    assert "/home" not in report.path.read_text() and found["notes"] == ["a line"]
    assert found["provenance"]["command"] == "python -m benchmarks.served drive --work work"
    assert [path.name for path in report.path.parent.iterdir()] == ["greedy.json"]


def test_an_error_is_noted_and_the_file_written(tmp_path: Path) -> None:
    report = Report(tmp_path / "a.json", "served", [])
    with report.noting("a step"):
        report.content["begun"] = True
        raise OSError("no server")
    assert (found := read(report.path))["notes"] == ["a step: OSError: no server"] and found["begun"]
    with pytest.raises(SystemExit), report.noting("the next"):
        raise SystemExit


def test_the_commit_outside_a_checkout_is_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    assert results.origin("served", [])["commit"] is None
    monkeypatch.setenv(provenance.COMMIT, "b40ae7a1")
    assert results.origin("served", [])["commit"] == "b40ae7a1"


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "expected a JSON object")]
)
def test_another_file_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadResult, match=message):
        read(path)


def commands(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "command" and isinstance(one, str) and re.match(r"python -m (benchmarks|tests|train)\b", one):
                yield one
            yield from commands(one)
    elif isinstance(value, list):
        for one in value:
            yield from commands(one)


FILES = sorted(RESULTS.rglob("*.json"))
PAGE = (ROOT / "benchmarks" / "README.md").read_text()
EARLIER = dict(re.findall(r"^\| `benchmarks\.([\w.]+)` \| `benchmarks\.(\w+)` \|$", PAGE, re.MULTILINE))
"""Benchmark names at a result's commit, and today's."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_the_command_of_a_result_exists_and_is_understood(path: Path) -> None:
    for command in commands(json.loads(path.read_text())):
        _, _, module, *words = shlex.split(command)
        if module.removeprefix("benchmarks.") in EARLIER:
            continue
        assert find_spec(module), command
        made = getattr(import_module(module), "parser", None)
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert made is None or flags <= known(made()), command


def test_every_earlier_name_has_one_of_today() -> None:
    assert EARLIER
    for name in EARLIER.values():
        assert find_spec(f"benchmarks.{name}"), name


def known(parser: Any) -> set[str]:
    """Return the flags of *parser*, of its subcommands, and of SGLang for servers whose flags are in a string."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        for sub in (getattr(action, "choices", None) or {}).values() if isinstance(action.choices, dict) else ():
            found |= set(sub._option_string_actions)
    return found | {
        *("--sampling-backend", "--context-length", "--cuda-graph-bs-decode", "--attention-backend"),
        *("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-eagle-topk"),
        *("--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion"),
    }


def test_every_folder_of_results_is_on_the_page_and_every_command_of_the_page_exists() -> None:
    missing = {path.name for path in RESULTS.iterdir() if path.is_dir()} - set(
        re.findall(r"`(?:results/)?([\w-]+)/", PAGE)
    )
    assert not missing
    for words in map(shlex.split, re.findall(r"`(python -m [^`]+)`", PAGE)):
        assert find_spec(words[2]), words


def content(**rates: list[float]) -> dict[str, Any]:
    def turn(block: int, factor: int) -> dict[str, Any]:
        passes = {name.replace("_", "-"): {"rate": factor * of[block]} for name, of in rates.items()}
        return {"block": block, "passes": passes}

    return {"batches": {"16": [turn(0, 2), turn(1, 2)], "1": [turn(0, 1), turn(1, 1)]}}


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
    assert len(list(of_results.every_rate({}))) == 2 and list(of_results.host_time({}))
