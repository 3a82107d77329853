"""Required parts of SGLang are found or named, and the record of hooked bodies is of the supported releases."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from sglang_adaptive.sglang_plugin import bodies, contract, hooks
from sglang_adaptive.sglang_plugin.contract import RELEASES, Need

WORKER = """
from sglang.base import Base, helper as ours
try:
    from elsewhere import absent
except ImportError:
    from .tools import absent

class Worker(Base):
    @property
    def steps(self):
        return 1

    @steps.setter
    def steps(self, value):
        pass

    def draft(self, batch):
        return batch + 1
"""
BASE = """
def helper():
    return 1

class Base:
    if helper():
        def verify(self):
            return 2
"""
TARGETS = ("Worker", "Worker.steps", "Worker.draft", "Worker.verify", "ours", "absent")
"""Every kind of definition in the worker's module: its own, inherited, conditional, and imported in three ways."""


def written(folder: Path, worker: str = WORKER, base: str = BASE) -> dict[str, str]:
    """Write a package, and return the hashes of its TARGETS."""
    files = {"worker.py": worker, "base.py": base, "tools.py": "def absent():\n    return 3\n"}
    for name, text in files.items():
        path = folder / "sglang" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    bodies._statements.cache_clear()
    found = bodies.hashes([f"sglang.worker.{target}" for target in TARGETS], folder)
    return {target.removeprefix("sglang.worker."): body for target, body in found.items()}


def test_what_has_no_source_is_left_out(tmp_path: Path) -> None:
    written(tmp_path)
    targets = ["sglang.worker.nothing", "sglang.worker.Worker.nothing", "sglang.nowhere.f", "torch.ops.f"]
    assert bodies.hashes(targets, tmp_path) == {}


def test_comments_docstrings_and_layout_do_not_count(tmp_path: Path) -> None:
    other = WORKER.replace("batch + 1", "(batch +\n            1)  # why").replace(
        "def draft(self, batch):\n", 'def draft(self, batch):\n        """Says more."""\n'
    )
    assert other.count("Says more") == 1
    assert written(tmp_path) == written(tmp_path, other)


@pytest.mark.parametrize(
    ("before", "after", "seen"),
    [
        ("batch + 1", "batch + 2", {"Worker", "Worker.draft"}),
        ("self, batch", "self, batch, more=None", {"Worker", "Worker.draft"}),
        ("pass", "self.value = value", {"Worker", "Worker.steps"}),
        ("return 2", "return 20", {"Worker.verify"}),
        ("return 1\n\nclass", "return 0\n\nclass", {"ours"}),
    ],
)
def test_change_of_a_body_is_seen_where_it_is(tmp_path: Path, before: str, after: str, seen: set[str]) -> None:
    assert (WORKER + BASE).count(before) == 1
    now = written(tmp_path)
    assert now.keys() == set(TARGETS)
    then = written(tmp_path, WORKER.replace(before, after), BASE.replace(before, after))
    assert {target for target in TARGETS if now[target] != then[target]} == seen


def test_changed_bodies_of_the_installed_sglang_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = written(tmp_path)
    monkeypatch.setattr(bodies, "installed", lambda: tmp_path)
    record = {f"sglang.worker.{target}": {"1.0": "other", "1.1": body} for target, body in now.items()}
    monkeypatch.setattr(bodies, "recorded", lambda: record)
    assert bodies.changed(record) == []
    written(tmp_path, WORKER.replace("batch + 1", "batch + 2"))
    assert bodies.changed(record) == ["sglang.worker.Worker", "sglang.worker.Worker.draft"]


def test_record_is_that_of_the_sglang_release() -> None:
    release = version("sglang")
    if release not in RELEASES:
        pytest.skip(f"sglang {release} is not one of those that are served")
    recorded = {target: of[release] for target, of in bodies.recorded().items() if release in of}
    assert recorded == bodies.hashes(hooks.targets()), "the hooks have changed: run `make bodies`"


def test_record_and_requirement_are_of_the_releases_that_are_served() -> None:
    assert {release for of in bodies.recorded().values() for release in of} == set(RELEASES)
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (required,) = (line for line in project["dependencies"] if line.startswith("sglang"))
    assert required == f"sglang>={RELEASES[0]},<={RELEASES[-1]}"


HERE = f"{__name__}."


@dataclass
class Plain:
    field: int


class Other(Plain):
    annotated: int
    constant = 1

    def __init__(self) -> None:
        self.assigned, self.pair = 1, 2
        self.typed: int = 3

    def method(self, given: int) -> int:
        self.later = given
        return self.read_alone  # type: ignore[attr-defined,no-any-return]


def test_attributes_are_found() -> None:
    names = ("field", "annotated", "constant", "assigned", "pair", "typed", "later", "method")
    assert Need(HERE + "Other", names).problem() is None


def test_what_is_missing_is_named() -> None:
    assert Need(HERE + "Other", ("field", "read_alone")).problem() == f"{HERE}Other has no read_alone"
    assert Need(HERE + "Other.method", ("given", "more")).problem() == f"{HERE}Other.method has no more"
    missing = Need(HERE + "Absent").problem()
    assert missing is not None and missing.startswith(f"{HERE}Absent is missing")


def test_what_a_release_has_not_yet_is_needed_of_later_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    need = Need("json.nothing", since=RELEASES[-1])
    for release, missing in ((RELEASES[0], False), (RELEASES[-1], True), ("0.5.99", True)):
        monkeypatch.setattr(contract, "sglang_release", lambda release=release: release)
        assert (need.problem() is not None) is missing, release
