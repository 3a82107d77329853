"""Each figure of README.md comes from a result with a commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import ledger

FILE = "[measured](benchmarks/results/a.json)"
COMMIT = {"provenance": {"commit": "b40ae7a1"}}


def test_the_readme() -> None:
    assert not list(ledger.without_a_file((ledger.ROOT / "README.md").read_text()))


@pytest.mark.parametrize(
    ("text", "content", "wrong"),
    [
        ("1.9 times the tokens/s", COMMIT, "links no file"),
        (f"It is 6 to 11 times as fast.\n\n{FILE}", COMMIT, "links no file"),
        ("Up to 5% slower", COMMIT, "links no file"),
        ("| batch 1 |\n|---|\n| 1.03 |", COMMIT, "links no file"),
        (f"a decision of 23 us, {FILE}", {"provenance": {"commit": None}}, "has no commit"),
        (f"a decision of 23 us, {FILE}", COMMIT, None),
        (f"<!-- t: begin -->\n| 1.03 |\n\n{FILE}\n<!-- t: end -->", COMMIT, None),
        ("SGLang 0.5.22, Python 3.11 to 3.13, Llama-3.1-8B, 4.5 GB\n\n```bash\n5 ms\n```", COMMIT, None),
    ],
)
def test_a_figure_without_a_commit_is_named(
    text: str, content: object, wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "a.json").write_text(json.dumps(content))
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    found = list(ledger.without_a_file(text))
    assert [wrong in line for line in found] == [True] if wrong else not found


def test_every_file_of_the_ledger_has_a_line() -> None:
    lines = {line.split()[0]: line for line in ledger.entries()}
    for path in ledger.files_of("README.md"):
        commit = ledger.commit_of(json.loads(path.read_text()))
        line = lines[path.relative_to(ledger.RESULTS).as_posix()]
        assert commit and commit[:8] in line and "README.md" in line
