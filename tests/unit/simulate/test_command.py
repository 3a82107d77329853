"""``sglang-adaptive simulate`` as a user calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_adaptive.lab.simulate.command import main
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.text import drawn
from sglang_adaptive.policy.profile import shipped_config
from tests.refusals import refused

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SHORT = ["--traces", "2", "--rounds", "120"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "nope"], "argument --suite: invalid choice: 'nope' (choose from"),
        (["--policy", "static-4"], "--policy static-4: unknown; expected one of oracle"),
        (["--policy", "nowhere:make"], "--policy nowhere:make: ModuleNotFoundError: "),
        (["--policy", "os:getcwd"], "expected a callable that takes a Launch and returns a policy"),
        (["--rounds", "99"], "argument --rounds: got '99'; expected a whole number of at least 100"),
        (["--traces", "0"], "argument --traces: got '0'; expected a whole number of at least 1"),
        (["--seed", "-1"], "argument --seed: got '-1'; expected a whole number of at least 0"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--profile", "no-such.json"], "--profile no-such.json: cannot be read (No such file or directory)"),
        (["--json", "no-such-folder/x.json"], "expected a file in an existing folder"),
        (["--suite", "real", "--suite", "both"], "--suite real: expected no other suite with it"),
        (["--suite", "real", "--texts", "no-such.npz"], "--texts no-such.npz: "),
        (["--texts", "x.npz"], "--texts x.npz: only --suite real reads recordings"),
        (["--suite", "real", "--policy", "oracle"], "--policy oracle: needs random acceptance"),
        (["--suite", "both", "--policy", "lookups"], "--policy lookups: needs recorded text; expected --suite real"),
        (["--policy", "math:pi"], "--policy math:pi: a float; expected a callable"),
        (["--trace", "t", "--suite", "both"], "--suite: --trace t replays only that trace; expected no --suite"),
        (["--trace", "t", "--texts", "x"], "--texts: --trace t replays only that trace; expected no --texts"),
        (["--trace", "t", "--policy", "oracle"], "oracle: needs random acceptance; --trace has knows-contexts"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, ["simulate", *words])
    assert told.startswith("sglang-adaptive simulate: ") and message in told


def profile_with(keep: Callable[[dict[str, int]], bool]) -> bytes:
    profile = json.loads(shipped_config("profiles/h200-llama31-8b-eagle3-fa3.json").read_text())
    profile["cells"] = [cell for cell in profile["cells"] if keep(cell)]
    return json.dumps(profile).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "broken JSON"),
        (b"[]", "the top level is []"),
        (b'{"format": "other"}', 'format: got "other"'),
        (b"\xff\xfe", "cannot be read (not UTF-8 text)"),
        (profile_with(lambda cell: (cell["batch_size"], cell["steps"]) != (16, 5)), "batch_size 16, steps 5 missing"),
        (profile_with(lambda cell: cell["steps"] == 0), "no steps but 0; expected"),
    ],
    ids=range(6),
)
def test_a_bad_profile_is_one_line_and_exit_2(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    file.write_bytes(content)
    assert f"profile.json: {message}" in refused(capsys, ["simulate", "--profile", str(file)])


@pytest.fixture
def of_few_steps(tmp_path: Path) -> str:
    """A profile like `calibrate` writes for the steps 0, 1, 3 and 7."""
    (tmp_path / "few.json").write_bytes(profile_with(lambda cell: cell["steps"] in (0, 1, 3, 7)))
    return str(tmp_path / "few.json")


LEFT_OUT = "ema is left out: the profile has no round times for 5 steps"


def test_policies_that_do_not_fit_a_profile_are_left_out_and_named(
    of_few_steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "r.json"
    assert main([*SHORT, "--suite", "both", "--profile", of_few_steps, "--json", str(data)]) == 0
    printed = capsys.readouterr()
    assert printed.out.rstrip().endswith(LEFT_OUT) and printed.err == "", "off a terminal there is no progress bar"
    report = json.loads(data.read_text())
    static = [f"static-{steps}" for steps in (0, 1, 3, 7)]
    assert list(report["suites"]["both"]["policies"]) == ["oracle", "throughput", "ema-all", *static]
    assert report["provenance"]["left_out"] == [LEFT_OUT]


@pytest.mark.parametrize("suite", ["both", "real"])
def test_a_lone_policy_without_times_is_refused(
    suite: str, of_few_steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, ["simulate", "--policy", "ema", "--profile", of_few_steps, "--suite", suite])
    assert told == f"sglang-adaptive simulate: {LEFT_OUT}\n"


def test_the_shipped_profile_is_the_measured_grid() -> None:
    name, cost = load_cost(None)
    assert name == "h200-llama31-8b-eagle3-fa3"
    assert (cost.batches, cost.steps) == ((1, 2, 4, 8, 16, 32, 64), (0, 1, 2, 3, 5, 7))
    assert cost.cells()[64, 7] == pytest.approx(0.015695)


def test_reports_say_the_same_and_name_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "r.json"
    policies = ["--policy", "ema", "--policy", "static-3", "--policy", "static-0"]
    assert main([*SHORT, *policies, "--suite", "both", "--suite", "heterogeneous", "--json", str(data)]) == 0
    text = capsys.readouterr().out
    report = json.loads(data.read_text())

    assert list(report["suites"]) == ["both", "heterogeneous"]
    found = report["suites"]["both"]["policies"]
    assert list(found) == ["ema", "static-0", "static-3"]
    row = next(line.split() for line in text.splitlines() if line.startswith("both "))
    assert row[1:] == [f"{found[name]['mean']:.3f}" for name in found]
    assert found["static-0"]["switches_per_200_rounds"] == 0
    assert report["provenance"]["command"].endswith("--json r.json")

    assert str(tmp_path) not in data.read_text()
    assert not re.search(r"https?://|@import|url\(", data.read_text())


def test_the_text_has_the_figures_of_the_kept_run() -> None:
    data = json.loads((RESULTS / "simulation" / "simulate.json").read_text())
    text = drawn("simulate", data)
    for figure, title in (("mean", "mean over the traces"), ("worst", "worst trace")):
        shares = [f"{found[figure]:.3f}" for found in data["suites"]["both"]["policies"].values()]
        below = text.split(f"Share of the oracle's throughput, {title}")[1].splitlines()
        assert next(line.split() for line in below if line.startswith("both "))[1:] == shares
    met = sum(target["met"] for target in data["targets"])
    assert f"{met} of {len(data['targets'])} targets met." in text
