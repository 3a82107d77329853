"""The demo's JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sglang_adaptive.lab.demo import report
from sglang_adaptive.lab.demo.results import Mismatch
from tests.demo_runs import ema_run, plain_run, static_run

RUNS = [plain_run(), ema_run(0.8), static_run(1, 2.5), static_run(3, 1.0)]
ARGV = ["--json", "/somewhere/deep/out.json", "--json=/somewhere/else.json", "--tokens", "24"]


@pytest.fixture
def built() -> dict:
    content = report.build(RUNS, [], [], seconds=93.21, load=0.123, argv=ARGV)
    return json.loads(json.dumps(content, allow_nan=False))


def test_top_level(built: dict) -> None:
    assert built["lossless"] is True and built["mismatches"] == [] and built["failures"] == []
    assert built["switches"] == 4
    assert built["seconds"] == 93.2
    assert built["command"] == "sglang-adaptive demo --json out.json --json=else.json --tokens 24"
    assert set(built["versions"]) == {"sglang", "torch", "sglang_adaptive", "python"}
    assert all(built["versions"].values())
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", built["git_commit"] or "0" * 40)
    assert built["cpu"]["model"] and built["cpu"]["cores"] >= 1
    assert built["cpu"]["load_before"] == 0.12


def test_what_each_policy_did_in_all_and_in_each_phase(built: dict) -> None:
    assert list(built["policies"]) == ["none", "ema", "static-1", "static-3"]
    plain, ema = built["policies"]["none"], built["policies"]["ema"]
    assert (plain["tokens_per_second"], plain["accept_length"], plain["rounds_by_depth"]) == (10.0, None, {})
    assert (ema["tokens_per_second"], ema["accept_length"]) == (25.0, round(120 / 46, 4))
    assert ema["rounds_by_depth"] == {"1": 18, "7": 28} and ema["switches"] == 4
    assert [(p["family"], p["concurrency"]) for p in built["phases"]] == [
        (family, concurrency) for concurrency in (1, 4) for family in ("easy", "hard", "easy")
    ]
    hard = built["phases"][1]["policies"]["ema"]
    assert (hard["rounds_by_depth"], hard["tokens_per_second"], hard["accept_length"]) == ({"1": 6, "7": 2}, 25.0, 2.5)
    assert {point["policy"] for point in built["timeline"]} == {"ema"}
    seconds = [point["seconds"] for point in built["timeline"]]
    assert seconds == sorted(seconds) and len(seconds) == 6 + 4


def test_a_mismatch_shows() -> None:
    wrong = Mismatch("EMA", "1-easy-x1", "one", 3, 7, None)
    built = report.build(RUNS, [wrong], ["line"], seconds=1.0, load=0.0, argv=[])
    assert built["lossless"] is False and built["failures"] == ["line"]
    assert built["mismatches"][0]["position"] == 3 and built["mismatches"][0]["got"] is None


def test_no_absolute_path_anywhere(built: dict) -> None:
    assert not re.search(r'"/|[ =]/\w', json.dumps(built))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        report.write(path, {"a": object()})
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    report.write(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]
