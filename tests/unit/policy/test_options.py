"""An option is one annotated field, from which its check, error lines and reference row follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from sglang_adaptive.policy.options import (
    as_dict,
    changed,
    checked,
    depths,
    flag,
    integer,
    nested,
    number,
    options_of,
    pathname,
    reference,
    word,
)


@dataclass(frozen=True, slots=True)
class Inner:
    file: Annotated[str, pathname("where it goes", "a file's path")]


@dataclass(frozen=True, slots=True)
class Example:
    """Every kind of option; ``source`` is not an option."""

    source: str
    steps: Annotated[tuple[int, ...], depths("which steps")]
    share: Annotated[float, number("a share", 0.0, 1.0, above=True)] = 0.5
    rounds: Annotated[int, integer("how many rounds", 1, 1_000_000)] = 8
    fast: Annotated[bool, flag("whether to hurry")] = False
    slow: Annotated[bool | None, flag("whether to wait", "true; false on a CPU")] = None
    inner: Annotated[Inner | None, nested(Inner, "more", "an object")] = None
    when: Annotated[str, word("at what time", "now", "later")] = "now"


def made(**given: Any) -> Example:
    return Example("a test", **checked(Example, {"steps": [1], **given}, "example.", "f.json"))


def test_every_kind_is_checked_and_read_back() -> None:
    given = {"steps": [3, 0, 3], "share": 1, "rounds": 2, "fast": True, "slow": False, "inner": {"file": "x"}}
    given["when"] = "later"
    found = made(**given)
    assert found == Example("a test", (0, 3), 1, 2, True, False, Inner("x"), "later")
    assert as_dict(found) == {**given, "steps": [0, 3]}
    assert as_dict(made()) == {"steps": [1], "share": 0.5, "rounds": 8, "fast": False, "when": "now"}, (
        "None is left out"
    )
    assert made(**as_dict(found)) == found


def test_the_reference_and_the_differences_come_from_the_fields() -> None:
    assert reference(Example) == [
        ("steps", "required", "a non-empty list of integers from 0 to 32, as in [1, 3, 7]", "which steps"),
        ("share", "0.5", "a number above 0 up to 1", "a share"),
        ("rounds", "8", "an integer from 1 to 1000000", "how many rounds"),
        ("fast", "false", "true or false", "whether to hurry"),
        ("slow", "true; false on a CPU", "true or false", "whether to wait"),
        ("inner", "none", "an object", "more"),
        ("when", '"now"', '"now" or "later"', "at what time"),
    ]
    assert changed(made(steps=[7], fast=True, inner={"file": "x"}), "example.") == [
        {"key": "example.fast", "value": True, "default": False, "meaning": "whether to hurry"},
        {"key": "example.inner", "value": {"file": "x"}, "default": None, "meaning": "more"},
    ]
    assert list(options_of(Example)) == ["steps", "share", "rounds", "fast", "slow", "inner", "when"]
