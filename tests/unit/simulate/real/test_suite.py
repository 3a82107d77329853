"""The real suite scores policies against the best single depth and three oracles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.text_gates import gates, told
from benchmarks.traces.files import write
from sglang_adaptive.lab.simulate.command import main
from sglang_adaptive.lab.simulate.contenders import contenders
from sglang_adaptive.lab.simulate.cost import SimulationError, load_cost
from sglang_adaptive.lab.simulate.real.cell import Cell, Score, play_cell
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.real.suite import Setting, pick, places, play
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.policy.profile import shipped_config
from tests.drawn_texts import copying_trace, drawn_trace

KINDS = {"easy": (0.98, 0.8), "hard": (0.5, 0.1)}
NAME, COST = load_cost(None)
SETTING = Setting({"drawn": Texts.of(drawn_trace(KINDS, tokens=100))}, {NAME: COST}, batches=(1, 16), rounds=300)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    known = contenders(COST.steps)
    return play(SETTING, [known["throughput"], known["static-3"]], ORACLES)


def test_lookups_are_worth_it_where_text_is_copied() -> None:
    texts = {"copying": Texts.of(copying_trace(40, 400))}
    setting = Setting(texts, {NAME: COST}, batches=(1,), rounds=600, with_arrivals=False)
    cells = play(setting, pick(["throughput", "lookups"], setting)[0])
    assert [cell.scene for cell in cells] == ["at random", "near-copies"] and len(cells) == setting.cells
    assert all(cell.scores["lookups"].over_single > 1.3 * cell.scores["throughput"].over_single for cell in cells)


def test_lookups_want_texts_that_were_recorded_with_them() -> None:
    with pytest.raises(SimulationError, match="--policy lookups: drawn was recorded without lookups"):
        pick(["throughput", "lookups"], SETTING)


def test_there_are_as_many_cells_as_announced(cells: list[Cell]) -> None:
    assert len(cells) == SETTING.cells
    assert len({(cell.load, cell.scene) for cell in cells}) == len(cells)


def test_a_fixed_depth_scores_what_it_has_over_the_best(cells: list[Cell]) -> None:
    for cell in cells:
        expected = cell.singles[3] / max(cell.singles.values())
        assert cell.scores["static-3"].over_single == pytest.approx(expected)
        assert cell.scores["static-3"].switches == 0.0
        if cell.best_single == 3:
            assert cell.scores["static-3"].slowest in (None, pytest.approx(1.0))


def test_who_knows_more_does_better(cells: list[Cell]) -> None:
    closed = [cell for cell in cells if cell.load.isdigit()]
    for cell in closed:
        kinds, contexts, drafts = (cell.scores[name].over_single for name in ORACLES)
        assert min(kinds, contexts) >= 1.0
        assert drafts > max(kinds, contexts) - 0.01
    phases = next(cell for cell in closed if (cell.load, cell.scene) == ("16", "phases"))
    assert phases.scores["knows-kinds"].over_single > 1.02
    alone = next(cell for cell in closed if (cell.load, cell.scene) == ("1", "hard"))
    assert alone.scores["knows-drafts"].over_single > 1.05


def test_a_cell_is_played_the_same_again() -> None:
    known = contenders(COST.steps)
    names, place = next(places(SETTING))
    one, two = (play_cell(place, names, [known["throughput"]]) for _ in range(2))
    assert one == two


def cell(scene: str, load: str, over_single: float, slowest: float = 1.0) -> Cell:
    scores = {"throughput": Score(over_single, 0.0, slowest), "ema": Score(1.0, 0.0, 1.0)}
    return Cell("spec-bench", scene, load, NAME, 100, 3, {3: 1.0}, scores)


def test_gates_take_the_worst_cell() -> None:
    played = [cell("math", "4", 1.02), cell("math", "16", 0.99), cell("at random", "1", 1.02, slowest=1.1)]
    found = {gate.title: gate for gate in gates(played)}
    (worst,) = (gate for title, gate in found.items() if title.endswith("worst") and "categories" in title)
    assert worst.measured == 0.99 and worst.met
    (ema,) = (gate for title, gate in found.items() if "EMA" in title)
    assert ema.measured == 0.99 and not ema.met
    (slowest,) = (gate for gate in found.values() if gate.ceiling and gate.bound)
    assert slowest.measured == 1.1 and not slowest.met
    assert all(replace(gate, bound=None).met for gate in found.values())


def test_a_gate_says_what_an_oracle_that_sees_no_drafts_reaches() -> None:
    played = [cell("math", load, 0.99) for load in ("4", "16")]
    knows = {"4": (1.0, 1.004, 1.3), "16": (1.002, 1.0, 1.2)}  # kinds, contexts, drafts
    for each in played:
        names = ("knows-kinds", "knows-contexts", "knows-drafts")
        oracles = zip(names, knows[each.load], strict=True)
        assert isinstance(each.scores, dict)
        each.scores.update({name: Score(over, 0.0, 1.0) for name, over in oracles})
    found = {gate.title.rsplit(", ", 1)[1]: gate for gate in gates(played) if "categories" in gate.title}
    mean, worst = found["mean"], found["worst"]
    assert mean.hindsight == pytest.approx(1.002) and not mean.met  # of 1.001 and 1.002
    assert worst.hindsight == 1.0 and worst.met
    said = {line.split("  ")[0]: line for line in told([mean.as_json(), worst.as_json()]).splitlines()}
    assert "1 of 2 gates met." in said
    assert "MISSED, in hindsight too" in said[mean.title] and said[worst.title].endswith("  met")
    del played[0].scores["knows-kinds"], played[0].scores["knows-contexts"]  # type: ignore[attr-defined]
    assert all(gate.hindsight is None for gate in gates(played))


def test_the_command_plays_recordings_and_a_policy_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine.npz", drawn_trace(KINDS, requests=8, tokens=40))
    (tmp_path / "own_policy.py").write_text(
        "from sglang_adaptive.lab.simulate.contenders import StaticPolicy\n"
        "def make(launch):\n    return StaticPolicy(launch.ladder[-1])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    profile = shipped_config(f"profiles/{NAME}.json")
    words = ["--suite", "real", "--texts", str(tmp_path / "mine.npz"), "--profile", str(profile)]
    words += ["--policy", "own_policy:make", "--policy", "throughput", "--rounds", "100"]
    assert main([*words, "--json", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    for played in report["cells"]:
        singles = played["singles"]
        assert played["scores"]["own_policy:make"]["over_single"] == pytest.approx(
            singles["7"] / max(singles.values()), rel=1e-3
        )
    text = capsys.readouterr().out
    assert "mine" in text and "own_policy:make" in text
    first = report["cells"][0]
    shares = [score["over_single"] for score in first["scores"].values()]
    row = next(line for line in text.splitlines() if line.startswith(f"batch {first['load']}, {first['scene']} "))
    assert row.split()[-4:] == [shown for share in shares for shown in (f"{share:.3f}", f"({share:.3f})")]
    assert np.isfinite([played["rounds"] for played in report["cells"]]).all()
