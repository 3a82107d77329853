"""What the documentation shows is what the package does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from scripts import tables
from sglang_adaptive import __version__
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", tables.PAGES)
def test_generated_tables_are_current(page: str) -> None:
    text = (ROOT / page).read_text()
    assert tables.filled(text, tables.PAGES[page]()) == text, "run make tables"


def test_what_is_old_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    current = (ROOT / "README.md").read_text()
    page.write_text(current.replace("| batch 1 |", "| batch 0 |"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    for arguments, code in (["--check"], 1), ([], 0), (["--check"], 0):
        monkeypatch.setattr(sys, "argv", ["tables.py", *arguments, "README.md"])
        assert tables.main() == code
    assert page.read_text() == current
    assert "not current: README.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    "config",
    [{"8": {"candidate_steps": [1, True]}}, {"1": {"candidate_steps": [1]}, "up_histeresis": 0}],
)  # fmt: skip
def test_the_shown_refusals_are_real(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(config, "my.json")
    # The page leaves out the list of keys.
    line = re.sub(r"(?<=one of ).*(?= \(did you mean)", "...", str(caught.value))
    assert f"\n{line}\n" in (ROOT / "docs" / "configuration.md").read_text()


def test_every_preset_and_profile_is_described() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.json")}
    assert not [path for path in shipped if f"](../{path})" not in page]


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert cited["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
