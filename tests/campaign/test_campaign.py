"""The short form of the campaign: a unit of some stages, small, with the seed of this file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.campaign.__main__ import main
from tests.campaign.stages import OPERATIONS, STEPPED

SEED = "20"
STAGES = ("configuration paths", OPERATIONS, STEPPED)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_lost(stage: str, tmp_path: Path) -> None:
    code = main(["--seed", SEED, "--units", "1", "--short", "--stage", stage, "--folder", str(tmp_path)])
    found = json.loads((tmp_path / "report.json").read_text())["stages"][stage]
    assert (code, found["losses"]) == (0, [])
    assert sum(found["tried"].values()) > 30


def test_a_campaign_that_was_cut_off_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> int:
        return main(["--short", "--stage", "configuration paths", "--folder", str(tmp_path), *more])

    assert run("--units", "1") == 0
    assert run("--units", "2") == 2 and "--resume" in capsys.readouterr().err
    assert run("--units", "2", "--seed", "5", "--resume") == 2
    assert run("--units", "1", "--resume") == 0
    assert len(list((tmp_path / "units").glob("*.json"))) == 1
