"""The key "trace" is checked like any other."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.policy.config.config import check_config
from sglang_adaptive.policy.config.trace_options import TraceOptions
from sglang_adaptive.policy.errors import ConfigError

SLOTS = {"1": {"candidate_steps": [1, 3]}}


@pytest.mark.parametrize("policy", [{}, SLOTS])
def test_a_trace_goes_with_every_policy(policy: dict[str, Any]) -> None:
    config = check_config({**policy, "trace": {"file": "rounds.trace"}}, "c.json")
    assert config.trace == TraceOptions("rounds.trace", 64.0)
    assert check_config(config.as_dict(), "c.json").trace == config.trace


def test_there_is_none_by_default() -> None:
    assert check_config({}, "c.json").trace is None
    assert "trace" not in check_config({}, "c.json").as_dict()


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (True, "c.json: trace: got true; expected an object"),
        ({}, "c.json: trace.file: missing; expected a file's path"),
        ({"file": ""}, 'c.json: trace.file: got ""; expected a file\'s path'),
        ({"file": 3}, "c.json: trace.file: got 3; expected a file's path"),
        ({"file": "a\0b"}, "c.json: trace.file: got"),
        ({"file": "a", "max_mb": 0}, "c.json: trace.max_mb: got 0; expected a number"),
        ({"file": "a", "max_mb": "1"}, 'c.json: trace.max_mb: got "1"; expected a number'),
        ({"file": "a", "size": 1}, "c.json: trace.size: unknown key; expected one of file, max_mb"),
    ],
)
def test_a_bad_value_is_told_in_one_line(trace: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config({"trace": trace}, "c.json")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
