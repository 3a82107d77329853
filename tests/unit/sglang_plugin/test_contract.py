"""Required parts of SGLang are found however a class gets them, and missing ones are named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sglang_adaptive.sglang_plugin import contract
from sglang_adaptive.sglang_plugin.contract import RELEASES, Need

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
        monkeypatch.setattr(contract, "_installed", lambda release=release: release)
        assert (need.problem() is not None) is missing, release
