"""The short form of the campaign: small units of two stages, a campaign that is continued, and ports that are lost."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_adaptive.lab.cpu_engine.server import PortTakenError
from tests import forked_servers
from tests.campaign import stages
from tests.campaign.__main__ import main
from tests.campaign.record import ATTEMPTS, Record, Unit
from tests.campaign.stages import OPERATIONS, STEPPED


@pytest.mark.parametrize("stage", [OPERATIONS, STEPPED])
def test_nothing_is_lost(stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests during all of an operator's actions on servers, and the stepped scheduler."""
    monkeypatch.setattr(stages, "subprocess", SimpleNamespace(run=forked_servers.run))
    code = main(["--seed", "20", "--units", "1", "--short", "--stage", stage, "--folder", str(tmp_path)])
    found = json.loads((tmp_path / "report.json").read_text())["stages"][stage]
    assert (code, found["losses"]) == (0, []), json.dumps(found["losses"], indent=1)
    assert sum(found["tried"].values()) > 30


def test_a_campaign_that_was_cut_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(stages.STAGES, STEPPED, (lambda unit, site: None, 1))

    def run(*more: str) -> int:
        return main(["--stage", STEPPED, "--folder", str(tmp_path), *more])

    assert run("--units", "1") == 0
    assert run("--units", "2") == 2 and "--resume" in capsys.readouterr().err
    assert run("--units", "2", "--seed", "5", "--resume") == 2
    assert run("--units", "1", "--resume") == 0
    assert len(list((tmp_path / "units").glob("*.json"))) == 1


@pytest.mark.parametrize("taken", [2, 3])
def test_a_unit_runs_again_if_its_server_lost_its_port(taken: int, tmp_path: Path) -> None:
    record, ran = Record(tmp_path, 3, resume=False), []

    def act(unit: Unit) -> None:
        ran.append(unit.random().random())
        unit.tried["starts"] += 1
        if len(ran) <= taken:
            raise PortTakenError("another process has taken port 27258")

    unit = record.run("seeds", act)
    assert len(ran) == ATTEMPTS and len(set(ran)) == 1, "the same unit"
    assert unit.tried["starts"] == 1 and unit.lost.total() == (taken == ATTEMPTS)
    assert list(record.units) == ["seeds-0000"]
