"""`make test-gpu` on tests that need no GPU: it goes on after failures, crashes and hangs, and accounts for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu.__main__ import APART, FIRST, KERNELS, ROOT, WITHOUT_SERVERS, Part, judged, parts

TESTS = {
    "test_hangs.py": """
        import pytest, subprocess, sys, time

        def test_passes(record_property):
            record_property("us", 2.5)

        def test_fails():
            print("printed before")
            assert 1 == 2, "one is not two"

        @pytest.mark.skip(reason="needs more")
        def test_skipped():
            pass

        def test_hangs():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            open("left", "w").write(str(child.pid))
            time.sleep(600)

        def test_after_the_hang():
            pass
    """,
    "test_crashes.py": """
        import os

        def test_crashes():
            os._exit(7)

        def test_after_the_crash():
            pass
    """,
    "test_broken.py": "import nothing_like_this",
}
COMMAND = "import sys; from pathlib import Path; from tests.gpu import __main__ as command; "
COMMAND += "command.ROOT = Path(sys.argv[1]); sys.exit(command.main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tests")
    (found / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
    for name, source in TESTS.items():
        lines = source.splitlines()
        (found / name).write_text("\n".join(line.removeprefix("        ") for line in lines))
    return found


def command(folder: Path, budget: int) -> tuple[int, dict[str, Any], str]:
    words = [str(folder), "--budget", str(budget), "--limit", "15", "--jobs", "2", "--results", str(folder / "r.json")]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words, "--work", str(folder / "work")], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, json.loads((folder / "r.json").read_text()), done.stdout + done.stderr


def test_every_test_is_accounted_for(folder: Path) -> None:
    code, content, output = command(folder, 120)
    found = content["tests"]
    assert code == 1 and (content["passed"], content["failed"], content["not run"]) == (3, 4, 1), output
    assert found["test_hangs.py::test_passes"]["figures"] == {"us": 2.5}
    lines = "\n".join(found["test_hangs.py::test_fails"]["lines"])
    assert "one is not two" in lines and "printed before" in lines
    assert found["test_hangs.py::test_skipped"]["outcome"] == "not run"
    assert found["test_hangs.py::test_skipped"]["lines"] == ["needs more"]
    assert "its process ran for" in found["test_hangs.py::test_hangs"]["lines"][0]
    assert "ended with exit code 7" in found["test_crashes.py::test_crashes"]["lines"][0]
    assert "nothing_like_this" in "\n".join(found["test_broken.py"]["lines"])
    for name in ("test_hangs.py::test_after_the_hang", "test_crashes.py::test_after_the_crash"):
        assert found[name]["outcome"] == "passed", "it ran in another process"
    assert not psutil.pid_exists(int((folder / "left").read_text())), "what a hung test started is ended"
    assert all(one["commit"] == content["provenance"]["commit"] for one in found.values())


def test_a_budget_that_is_over_leaves_earlier_results(folder: Path) -> None:
    (folder / "test_later.py").write_text("def test_later(): pass\n")
    before = json.loads((folder / "r.json").read_text())["tests"]
    code, content, _ = command(folder, 34)  # enough to find the tests, too little to run one
    assert code == 1 and content["tests"].pop("test_later.py::test_later") == {
        "outcome": "not run", "lines": ["the budget ended before"],
    }  # fmt: skip
    del before["test_broken.py"], content["tests"]["test_broken.py"]
    assert content["tests"] == before


@pytest.mark.parametrize(("outcome", "told"), [("failed", "not run"), ("passed", "passed")])
def test_a_test_that_the_end_of_the_budget_made_fail_has_not_run(outcome: str, told: str) -> None:
    events = [{"began": "one"}, {"ended": "one", "outcome": "failed"}, {"began": "two"}]
    events.append({"ended": "two", "outcome": outcome})
    found = dict(judged(Part("", ("one", "two", "three")), events, "the budget ended", over=True))
    assert {test: one["outcome"] for test, one in found.items()} == {"one": "failed", "two": told}


def test_tests_that_share_servers_are_one_part() -> None:
    stem = "tests/gpu/test_{}.py::test_it[{}]".format
    tests = [stem("new", "fa3-1"), stem("exact", "fa3"), stem("exact", "triton"), stem("same_drafts", "fa3-3")]
    found = parts([*tests, stem("same_drafts", "fa3-7"), stem("kernels", "a_check"), stem("chain_kernel", "another")])
    told = [(part.name, len(part.tests)) for part in found]
    assert told == [
        ("test_same_drafts-fa3", 2), ("kernels", 2), ("test_exact-fa3", 1), ("test_exact-triton", 1),
        ("test_new-fa3", 1),
    ]  # fmt: skip
    files = {path.stem: path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert {name.partition("-")[0] for name in FIRST} - {KERNELS} | {*WITHOUT_SERVERS} == files.keys()
    assert not any("serving" in files[name] for name in WITHOUT_SERVERS)
    variants = {name.partition("-")[2] for name in FIRST} - {""}
    assert variants <= {*APART} and all(f'"{name}"' in "".join(files.values()) for name in APART)
