"""A trace of rounds is re-cut into what every depth would have taken."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sglang_adaptive.lab.simulate.command import main
from sglang_adaptive.lab.simulate.real.scenes import Live, scenes
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.rounds import Rounds, read_rounds
from sglang_adaptive.lab.simulate.traffic import batches, runs_of, seen, texts_of
from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.round_trace import RoundTrace
from tests.drawn_texts import drawn_trace
from tests.refusals import refused

TEXTS = Texts.of(drawn_trace({"easy": (0.98, 0.8), "hard": (0.5, 0.1)}, requests=20, tokens=200))
LADDER = (0, 1, 2, 3, 5, 7)
HEAD = '{"format": "sglang-adaptive rounds", "version": 3}\n'


def served(file: Path, steps: list[int], batch: int = 4) -> Rounds:
    """Serve random requests, each depth for 50 rounds, like a server that writes its rounds to *file*."""
    work = next(work for work in scenes(TEXTS, batch, 800, seed=1) if work.name == "at random")
    live, trace, now = Live(work), RoundTrace(file, 64e6), 0
    live.join(0.0)
    while not live.over:
        depth, now = steps[now // 50 % len(steps)], now + 1
        requests = [f"request {number}" for number in live.requests]
        counts = live.advance(live.drawn(), depth)
        trace.add(RoundNote(drafted(depth), counts, batch, requests=requests))
        live.leave(now)
        live.join(now)
    trace.close()
    return read_rounds(file)


@pytest.mark.parametrize(
    ("rounds", "runs"),
    [
        ([(3, 1)], [2]),
        ([(3, 3), (3, 0)], [5]),  # the second round's start was correct, its first draft was not
        ([(3, 3), (1, 1), (5, 2), (3, 0)], [9, 1]),
        ([(3, 3)], [4]),  # the end cut it short
        ([(3, 3), (0, 0), (3, 1)], [4, 2]),
        ([(0, 0), (0, 0)], []),
    ],
)
def test_a_run_goes_from_one_rejection_to_the_next(rounds: list[tuple[int, int]], runs: list[int]) -> None:
    assert runs_of(rounds) == runs


def test_playing_a_text_takes_what_its_runs_cut_anew_take(tmp_path: Path) -> None:
    found = served(tmp_path / "t", [3, 5])
    texts = texts_of(found)
    runs = [run for stretches in found.requests.values() for stretch in stretches for run in runs_of(stretch)]
    for steps in LADDER:
        rounds = texts.walk(texts.begin, texts.end, steps)
        assert rounds.sum() == sum(math.ceil(run / (steps + 1)) for run in runs)


def test_shallower_depths_are_foretold_closely_and_deeper_ones_bounded(tmp_path: Path) -> None:
    found = served(tmp_path / "t", [5])
    texts = texts_of(found)
    true = {steps: len(TEXTS.accepted) / TEXTS.walk(TEXTS.begin, TEXTS.end, steps).sum() for steps in LADDER}
    known = {one["steps"]: one for one in seen(found, texts, LADDER)}
    recut = {steps: one["tokens_a_round_recut"] for steps, one in known.items()}
    for steps in (1, 2, 3, 5):
        assert recut[steps] == pytest.approx(true[steps], rel=0.06)
        assert known[steps]["trust"] == "close" and known[steps]["share_seen_here_or_deeper"] == 1.0
    assert recut[7] >= true[7] * 0.98
    assert (known[7]["trust"], known[7]["rounds_run"]) == ("upper bound", 0)
    assert known[7]["tokens_a_round_when_run"] is None
    assert known[5]["tokens_a_round_when_run"] == pytest.approx(recut[5], rel=0.02)


def test_batch_sizes_are_those_of_the_rounds() -> None:
    rounds = Rounds()
    rounds.batches.update({1: 20, 4: 60, 70: 20})
    assert batches(rounds, 64) == [1, 4, 64]


def test_text_and_json_have_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served(tmp_path / "t", [0, 3, 7])
    words = ["--trace", str(tmp_path / "t"), "--rounds", "100"]
    assert main([*words, "--json", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    (batch,) = report["batches"]
    shares = batch["over_best_single"]
    assert batch["batch_size"] == 4 and shares[f"always {batch['best_single']}"] == 1.0
    assert {"throughput", "ema", "ema-all", "knows-drafts", "always 0", "always 7"} <= set(shares)
    ran = {depth["steps"]: depth["rounds_run"] for depth in report["depths"]}
    assert ran[0] and ran[3] and ran[7] and not ran[5]
    text = capsys.readouterr().out
    assert f"{report['rounds']} rounds, {report['requests']} requests, batch 4 to 4." in text
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    for name, share in shares.items():
        assert lines[name][len(name.split())] == f"{share:.3f}"
    for depth in report["depths"]:
        assert lines[f"{depth['steps']} steps"][2] == str(depth["rounds_run"])


@pytest.mark.parametrize("ran", [(0, 3, 7), (3, 9)], ids=str)
def test_unknown_steps_are_named(ran: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = RoundTrace(tmp_path / "t", 1e6)
    for number in range(600):
        steps = ran[number // 100 % len(ran)]
        counts = [min(steps, number % 5), min(steps, number % 3)]
        trace.add(RoundNote(drafted(steps), counts, 2, requests=["a", f"b{number // 50}"]))
    trace.close()
    assert main(["--trace", str(tmp_path / "t"), "--policy", "throughput", "--rounds", "100"]) == 0
    text = capsys.readouterr().out
    assert "600 rounds, 13 requests, batch 2 to 2." in text
    unknown = [steps for steps in ran if steps not in LADDER]
    assert ("Rounds ran at 9 steps, for which " in text) is bool(unknown)
    assert "Only 0 rounds" not in text


def test_a_killed_server_leaves_a_readable_trace(tmp_path: Path) -> None:
    file = tmp_path / "t"
    served(file, [3])
    whole = read_rounds(file).count
    file.write_bytes(file.read_bytes()[:-3])
    assert read_rounds(file).count == whole - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "line 1: ''; expected"),
        ("some text\n", "line 1: 'some text'; expected"),
        (HEAD.replace("3}", "2}"), "line 1: "),
        (HEAD, "contains no rounds"),
        (f"{HEAD}3 1\n", "line 2: '3 1'; expected"),
        (f"{HEAD}@ a b\n3 1 90\n", "line 3: '3 1 90'; expected"),
        (f"{HEAD}@ a\n3 4 90\n", "line 3: '3 4 90'; expected"),
        (f"{HEAD}@ a\n99 1 90\n", "line 3: '99 1 90'; expected"),
        (f"{HEAD}@ a\n3 - 90\n", "line 3: '3 - 90'; expected"),
        (f"{HEAD}@ a\n3 1\n", "line 3: '3 1'; expected"),
        (f"{HEAD}@ a\n3 1 -90\n", "line 3: '3 1 -90'; expected"),
        (f"{HEAD}! many\n", "line 2: '! many'; expected"),
        (f"{HEAD}@ a\n0 0 90 +\n", "every round ran at 0 steps"),
        (f"{HEAD}@ \u00e9\n", "cannot be read (not a round trace)"),
    ],
)
def test_a_bad_trace_is_one_line_and_exit_2(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "t").write_text(text)
    assert message in refused(capsys, ["simulate", "--trace", str(tmp_path / "t")])


def test_texts_of_a_trace_are_whole() -> None:
    rounds = Rounds(requests={"a": [[(3, 3), (3, 1)], [(1, 0)]], "b": [[(0, 0)]], "c": [[(7, 2)]]})
    texts = texts_of(rounds)
    assert (texts.end - texts.begin).tolist() == [7, 3]
    assert list(texts.accepted) == [5, 4, 3, 2, 1, 0, 0, 2, 1, 0]
    assert np.array_equal(texts.kind, [0, 0])
