"""Recorded noise of round times, and its draws."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.noise.__main__ import main, table
from sglang_adaptive.lab.simulate import command, rounds, score
from sglang_adaptive.lab.simulate.contenders import build
from sglang_adaptive.lab.simulate.cost import SimulationError, load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.rounds import Recorded, Rounds, read_rounds
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from tests.refusals import refused

HEAD = '{"format": "sglang-adaptive rounds", "version": 3}\n'
NOISY = {suite.name: suite for suite in SUITES.values() if suite.noise}


def a_round(steps: int, seconds: float, timed: bool = True, extended: bool = True) -> Recorded:
    return Recorded(["a"], steps, [0], seconds, timed, False, extended, [])


def test_a_disturbance_is_a_reading_over_the_mean_of_its_cell_in_order() -> None:
    calm, late, short = 2.0, 3.0, 1.0
    readings = [calm, calm, late, short, calm, calm, calm, calm]
    stream = [a_round(3, 9.0, timed=False), *(a_round(3, seconds) for seconds in readings)]
    stream += [a_round(5, 7.0), a_round(5, 8.0)]  # too few to have a mean
    assert rounds.disturbances(Rounds(stream)).tolist() == [1.0, 1.0, 1.5, 0.5, 1.0, 1.0, 1.0, 1.0]


def test_each_round_of_a_cycle_of_zero_steps_has_its_own_mean() -> None:
    cycle = [a_round(0, 1.0, extended=False), a_round(0, 1.0, extended=False), a_round(0, 4.0)]
    assert rounds.disturbances(Rounds(cycle * rounds.FEWEST)).tolist() == [1.0] * 3 * rounds.FEWEST


@pytest.mark.parametrize("kind", rounds.KINDS)
def test_a_draw_is_a_stretch_of_one_recording(kind: str) -> None:
    found = rounds.recordings(kind)
    drawn = rounds.factors(kind, 40_000, np.random.default_rng(1))
    one = next(one for one in found if np.array_equal(drawn[: len(one)], drawn[len(one) : 2 * len(one)]))
    start = next(start for start in range(len(one)) if np.array_equal(np.roll(one, -start), drawn[: len(one)]))
    assert start > 0 and np.mean(one) == pytest.approx(1.0)
    assert not np.array_equal(drawn[:100], rounds.factors(kind, 100, np.random.default_rng(2)))


def test_on_a_busy_host_a_late_arrival_shortens_the_next_reading() -> None:
    (busy,) = rounds.recordings("busy")
    assert np.mean(busy[1:][busy[:-1] > 1.3] < 1.0) > 0.7


@pytest.mark.parametrize("name", NOISY)
def test_noise_changes_what_the_policy_reads_and_not_the_score(name: str) -> None:
    setting = Setting(load_cost(None)[1], rounds=200, traces=3)
    calm, traces = list(SUITES["both"].traces(setting))[::2], list(NOISY[name].traces(setting))
    fixed = np.full(200, 3)
    assert [score.share(trace, fixed) for trace in traces] == [score.share(trace, fixed) for trace in calm]
    assert not any(np.array_equal(a.clock, b.clock) for a, b in zip(calm, traces, strict=True))
    assert all(np.array_equal(a.accepted, b.accepted) for a, b in zip(calm, traces, strict=True))
    assert len(play(build(traces[0]), traces[0])) == 200


def test_an_installation_without_recordings_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "NOISE", tmp_path / "noise")
    monkeypatch.setattr(rounds, "NOISE", tmp_path / "noise")
    rounds.recordings.cache_clear()
    words = ["--traces", "1", "--rounds", "100", "--policy", "static-3"]
    assert command.main(words) == 0
    told = "noise-gpu, noise-host and noise-busy are left out: this installation has no recorded noise"
    assert capsys.readouterr().out.rstrip().endswith(told)
    told = refused(capsys, ["simulate", *words, "--suite", "noise-gpu"])
    assert "noise gpu: this installation has no recordings; expected a checkout" in told


def test_a_kept_recording_is_read_like_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "rounds.gz"
    own.write_bytes(gzip.compress(f"{HEAD}@ f00d\n3 1 ~9\n3 2 7000\n".encode()))
    monkeypatch.setattr("benchmarks.noise.__main__.NOISE", tmp_path)
    assert main(["keep", str(own), "gpu-x"]) == 0
    kept, original = read_rounds(tmp_path / "gpu-x.rounds.gz").stream, read_rounds(own).stream
    assert [one[1:] for one in kept] == [one[1:] for one in original] and kept[0].requests == ["0"]


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(HEAD.encode(), mtime=0)[:-9], b"\x1f\x8b\x08" + bytes(30)]
)
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(content)
    with pytest.raises(SimulationError, match=r"x\.gz: cannot be read \(not a round trace\)$"):
        read_rounds(file)


def test_the_readme_describes_the_recordings() -> None:
    assert "\n".join(table()) in (rounds.NOISE / "README.md").read_text()
