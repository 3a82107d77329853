"""Traces survive a round trip, are cut where the text repeats, and are refused in one line if damaged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.traces.files import lookups, requests, select, write
from benchmarks.traces.replay import main, rounds, table
from sglang_adaptive.lab.traces import CHAIN, LONGEST_CHAIN, WORDS, Trace, TraceError, read
from sglang_adaptive.policy.observation import DRAFTS, LONGEST


def made(seed: int = 0) -> Trace:
    """Three requests of 5, 1 and 9 positions; the last repeats from position 4."""
    rng = np.random.default_rng(seed)
    return Trace(
        {**{word: f"the {word}" for word in WORDS}, "temperature": 0.0},
        ("chat", "code", "chat"),
        length=np.array([5, 1, 9], np.int32),
        loop_start=np.array([5, 1, 4], np.int32),
        accepted=rng.integers(0, CHAIN + 1, 15, dtype=np.uint8),
        match=rng.integers(0, LONGEST + 1, 15, dtype=np.uint8),
        looked_up=rng.integers(0, DRAFTS + 1, 15, dtype=np.uint8),
    )


def same(one: Trace, other: Trace) -> bool:
    return all(np.array_equal(value, getattr(other, key)) for key, value in vars(one).items())


@pytest.mark.parametrize(
    "change",
    [{}, {"match": None, "looked_up": None}, {"accepted": np.full(15, 15, np.uint8)}],
    ids=["of chains", "without lookups", "of blocks"],
)
def test_a_trace_comes_back_as_it_was_written(tmp_path: Path, change: dict[str, Any]) -> None:
    trace = replace(made(), **change)
    write(tmp_path / "t.npz", trace)
    assert same(read(tmp_path / "t.npz"), trace)


def test_each_request_has_its_own_rows() -> None:
    trace = made()
    categories, accepted, starts = zip(*requests(trace), strict=True)
    assert categories == trace.category
    assert [len(rows) for rows in accepted] == [5, 1, 9]
    assert np.array_equal(np.concatenate(accepted), trace.accepted)
    assert starts == (0, 5, 6) and all(type(start) is int for start in starts)


def test_repetitions_are_cut_and_nothing_else() -> None:
    cut = made().without_repetitions()
    assert cut.length.tolist() == cut.loop_start.tolist() == [5, 1, 4]
    assert np.array_equal(cut.accepted, made().accepted[:10])
    for name in ("match", "looked_up"):
        assert np.array_equal(getattr(cut, name), getattr(made(), name)[:10])
    assert same(cut, cut.without_repetitions())
    assert replace(made(), match=None, looked_up=None).without_repetitions().match is None


@pytest.mark.parametrize("rows", [[2, 0], np.array([True, False, True])])
def test_requests_are_selected_by_index_or_mask(rows: Any) -> None:
    chosen = select(made(), rows)
    expected = [list(requests(made()))[i][1] for i in ([2, 0] if isinstance(rows, list) else [0, 2])]
    assert chosen.category == ("chat", "chat")
    assert np.array_equal(chosen.accepted, np.concatenate(expected))


def test_no_request_is_left() -> None:
    empty = select(made(), np.zeros(3, bool))
    assert list(requests(empty)) == []
    assert same(empty, empty.without_repetitions())


def test_lookups_are_told_position_by_position() -> None:
    """At output token 2, the last three tokens occur in the prompt, and the two that follow them there are correct."""
    ids = [1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 4, 5, 7]
    assert lookups(ids, prompt=7, positions=5).tolist() == [[0, 0], [2, 3], [3, 2], [4, 1], [5, 0]]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with np.load(path) as loaded:
        arrays = dict(loaded)
    change(arrays)
    np.savez_compressed(path, **arrays)


def test_the_confidence_that_older_traces_hold_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "t.npz", made())
    rewrite(tmp_path / "t.npz", lambda arrays: arrays.update(confidence=np.zeros((15, CHAIN), np.uint8)))
    assert same(read(tmp_path / "t.npz"), made())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"length": np.array([5, 0, 10], np.int32)}, "length: got 0 to 10; expected 1 or more"),
        ({"length": np.array([5, 1], np.int32)}, "length: got int32 [2]; expected int32 [3]"),
        ({"loop_start": np.array([5, 2, 4], np.int32)}, "loop_start: got 2 to 5; expected 1 to the length"),
        ({"accepted": np.zeros(15, np.int64)}, "accepted: got int64 [15]; expected uint8 [15]"),
        ({"accepted": np.full(15, LONGEST_CHAIN + 1, np.uint8)}, "accepted: got 64 to 64; expected 0 to 63"),
        ({"looked_up": np.zeros(14, np.uint8)}, "looked_up: got uint8 [14]"),
        ({"looked_up": None}, "looked_up: got object []"),
    ],
)
def test_a_field_that_breaks_the_format_is_named(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(TraceError, match=re.escape(told)):
        write(tmp_path / "t.npz", replace(made(), **change))
    assert not (tmp_path / "t.npz").exists()


def changed_about(arrays: dict[str, Any], **change: object) -> None:
    arrays["about"] = np.array(json.dumps(json.loads(str(arrays["about"])) | change))


def flip_a_byte(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"accepted.npy") + 60] ^= 0xFF
    path.write_bytes(whole)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_an_array(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))


SPOILT: dict[str, Callable[[Path], object]] = {
    "of another version": lambda path: rewrite(path, lambda arrays: changed_about(arrays, format_version=2)),
    "without a temperature": lambda path: rewrite(path, lambda arrays: changed_about(arrays, temperature=None)),
    "without a field": lambda path: rewrite(path, lambda arrays: arrays.pop("accepted")),
    "with objects": lambda path: rewrite(path, lambda arrays: arrays.update(accepted=np.array([object()]))),
    **{f"cut to {n}": lambda path, n=n: path.write_bytes(path.read_bytes()[:n]) for n in (0, 10, 400)},
    "with a wrong byte": flip_a_byte,
    "of one array": become_an_array,
    "of text": lambda path: path.write_text("a line of text\n"),
    "a folder": become_a_folder,
    "missing": Path.unlink,
}


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_no_whole_trace_is_refused_in_one_line(tmp_path: Path, how: str) -> None:
    path = tmp_path / "t.npz"
    write(path, made())
    SPOILT[how](path)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert path.name in str(caught.value) and "\n" not in str(caught.value)


def test_a_trace_is_read_without_torch_and_sglang() -> None:
    code = "import sys, sglang_adaptive.lab.traces; sys.exit(any(name in sys.modules for name in ('torch', 'sglang')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FOLDER = Path(__file__).parents[3] / "benchmarks" / "traces"
MOST_BYTES = 1_000_000


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.name)
def test_a_trace_is_small_and_its_page_shows_its_replay(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    page = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    lines = table(read(path))
    start = page.index(f"{path.name}:")
    assert page[start + 2 : start + 2 + len(lines)] == lines


def test_a_round_starts_where_the_last_one_ended() -> None:
    accepted = [2, 0, 7, 1, 0, 0]
    assert rounds(accepted, 1) == [2, 2, 1, 1]
    assert rounds(accepted, 7) == [3, 2, 1]


def test_a_trace_that_cannot_be_read_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
