"""Profiles on disk: complete or absent, set aside if bad, shared by servers, saved periodically."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, loads_profile, ordered
from sglang_adaptive.runtime import profile_store
from sglang_adaptive.runtime.profile_store import SAVE_SECONDS, ProfileSaver, ProfileStore, default_folder

KEY = ProfileKey("org/Target-8B", "draft", "NVIDIA H200", 1, 1, "fa3", {"model": "bf16"}, {"sglang": "0.5.23"})
WRITER = """
import sys
from pathlib import Path
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.runtime import profile_store
from sglang_adaptive.runtime.profile_store import ProfileStore
from test_profile_store import KEY, cells
profile_store.LOCK_SECONDS = 3600.0  # however slow the machine, it is the lock that is tested, and not giving up
store = ProfileStore(KEY, Path(sys.argv[1]))
steps, count = int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for _ in range(count):
    store.save(CostProfile(KEY, cells(steps), "test"))
"""


def cells(steps: int, batches: int = 200) -> tuple[ProfileCell, ...]:
    return ordered(ProfileCell(batch, steps, 0.005 + 0.0001 * batch, 10) for batch in range(1, batches + 1))


def profile(steps: int = 3, batches: int = 3) -> CostProfile:
    return CostProfile(KEY, cells(steps, batches), "test")


def writer(folder: Path, steps: int, count: int) -> subprocess.Popen[str]:
    here = Path(__file__)
    path = os.pathsep.join([str(here.parent), str(here.parents[3])])
    command = [sys.executable, "-c", WRITER, str(folder), str(steps), str(count)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    assert ProfileStore(KEY, tmp_path / "new" / "folder").load() is None
    store = ProfileStore(KEY, tmp_path)
    assert store.saved_at is None and store.save(profile())
    assert store.saved_at == pytest.approx(store.path.stat().st_mtime, abs=60)
    os.utime(store.path, (0, 1234.5))
    again = ProfileStore(KEY, tmp_path)
    assert again.load() == profile() and again.saved_at == 1234.5
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    "other",
    [
        *({"gpu_name": "NVIDIA H100"}, {"gpu_count": 2}, {"tp_size": 2}, {"draft_model": "other"}),
        *({"attention_backend": "triton"}, {"dtypes": {"model": "fp8"}}, {"versions": {"sglang": "0.5.24"}}),
    ],
)
def test_another_key_has_another_file(tmp_path: Path, other: dict[str, object]) -> None:
    ProfileStore(KEY, tmp_path).save(profile())
    assert ProfileStore(replace(KEY, **other), tmp_path).load() is None  # type: ignore[arg-type]
    assert ProfileStore(KEY, tmp_path).load() == profile()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)],
    ids=["a FIFO", "a device", "a link to itself"],
)
def test_what_is_no_file_is_set_aside_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    store = ProfileStore(KEY, tmp_path)
    make(store.path)
    assert store.load() is None and not store.path.exists()
    assert store.save(profile()) and store.load() == profile()


WHOLE = profile().dumps().rstrip().encode()


@settings(max_examples=90, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.binary(max_size=400) | st.integers(0, len(WHOLE) - 1).map(lambda end: WHOLE[:end]))
def test_arbitrary_bytes_and_a_truncated_file_are_set_aside(tmp_path: Path, data: bytes) -> None:
    store = ProfileStore(KEY, tmp_path)
    store.path.write_bytes(data)
    assert store.load() is None
    assert not store.path.exists() and store.path.with_name(store.path.name + ".corrupt").exists()
    assert store.save(profile()) and store.load() == profile()


@pytest.mark.parametrize(
    ("reason", "change", "told"),
    [
        ("newer", ('"version": 1', '"version": 2'), ""),
        ("foreign", ("NVIDIA H200", "NVIDIA B300"), ""),
        ("foreign", ("sglang-adaptive cost profile", "something else"), ""),
        ("corrupt", ('"seconds": 0.0051', '"seconds": -1'), ""),
        ("corrupt", ('"seconds": 0.0051', '"seconds": NaN'), ""),
        ("corrupt", ('"batch_size": 2', '"batch_size": 1'), "cells[1]: batch size 1, steps 3 again"),
        ("corrupt", ('"steps": 3', '"steps": -1'), "cells[0].steps: got -1; expected 0 to 32"),
    ],
)
def test_a_bad_file_is_set_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str, change: tuple[str, str], told: str
) -> None:
    store, text = ProfileStore(KEY, tmp_path), profile().dumps()
    assert change[0] in text
    store.path.write_text(text.replace(*change, 1), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert store.load() is None
        assert store.load() is None
    assert len(caplog.records) == 1 and "\n" not in caplog.text.strip() and told in caplog.text
    assert store.path.with_name(f"{store.path.name}.{reason}").exists()
    assert store.save(profile()) and store.load() == profile()


def test_two_servers_keep_each_others_cells(tmp_path: Path) -> None:
    one, other = ProfileStore(KEY, tmp_path), ProfileStore(KEY, tmp_path)
    one.save(profile(1))
    other.save(profile(3))
    loaded = one.load()
    assert loaded is not None and {cell.steps for cell in loaded.cells} == {1, 3}
    one.save(CostProfile(KEY, (ProfileCell(1, 1, 0.5, 99),), "later"))
    assert ProfileCell(1, 1, 0.5, 99) in one.load().cells  # type: ignore[union-attr]


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    writers = [writer(tmp_path, steps, 12) for steps in (1, 2, 3)]
    assert [w.wait() for w in writers] == [0, 0, 0]
    for w in writers:
        w.stdout.close()  # type: ignore[union-attr]
    loaded = ProfileStore(KEY, tmp_path).load()
    assert loaded is not None and loaded.cells == ordered(c for steps in (1, 2, 3) for c in cells(steps))


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.031])
def test_a_server_killed_while_writing_leaves_a_whole_file(tmp_path: Path, delay: float) -> None:
    store = ProfileStore(KEY, tmp_path)
    store.save(CostProfile(KEY, cells(5), "test"))
    victim = writer(tmp_path, 7, 100_000)
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
    time.sleep(delay)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    loaded = store.load()
    assert loaded is not None and set(cells(5)) <= set(loaded.cells)
    assert store.save(profile(1)), "the lock of a killed server is free"


def test_the_leftover_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    store = ProfileStore(KEY, tmp_path)
    left = tmp_path / f".{store.path.name}.tmp"
    left.write_text("half a prof")
    assert store.save(profile()) and store.load() == profile() and not left.exists()


def test_a_lock_that_is_held_skips_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_store, "LOCK_SECONDS", 0.05)
    holder, other = ProfileStore(KEY, tmp_path), ProfileStore(KEY, tmp_path)
    with holder._locked() as locked:
        assert locked
        assert not other.save(profile())
    assert other.save(profile())


def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    store = ProfileStore(KEY, blocked)
    with caplog.at_level(logging.WARNING):
        assert not store.save(profile())
        assert not store.save(profile())
        assert store.load() is None
    assert sum("cannot be written" in record.getMessage() for record in caplog.records) == 1
    taken = ProfileStore(KEY, tmp_path)
    taken.path.mkdir()
    assert taken.load() is None and not taken.save(profile())


def test_the_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "sglang-adaptive" / "profiles"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "sglang-adaptive" / "profiles"


def test_the_saver_writes_once_a_minute_and_at_the_end(tmp_path: Path) -> None:
    now = [0.0]
    store = ProfileStore(KEY, tmp_path)
    saver = ProfileSaver(store, lambda: now[0])
    saver.offer(lambda: profile(3))
    now[0] = SAVE_SECONDS
    saver.offer(lambda: profile(1))
    saver.offer(lambda: profile(3))
    saver.close(profile(5))
    loaded = store.load()
    assert loaded is not None and {cell.steps for cell in loaded.cells} == {1, 5}


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 1_000_000), st.integers(0, 32)),
        st.tuples(st.floats(1e-9, 3600.0), st.none() | st.integers(0, 10**12)),
        max_size=20,
    )
)
def test_any_profile_survives_its_text(found: dict[tuple[int, int], tuple[float, int | None]]) -> None:
    written = CostProfile(KEY, ordered(ProfileCell(b, s, t, n) for (b, s), (t, n) in found.items()), 'say "how"')
    assert loads_profile(written.dumps(), "f") == written
