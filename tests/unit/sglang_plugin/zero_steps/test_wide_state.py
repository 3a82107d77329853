"""Which draft extend a draft that is a whole model catches up with: one of many tokens, for up to eight requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.sglang_plugin.stages.zero_steps import deferred_draft_extend

WIDE = "an extend of many tokens"


def state(tokens: int, requests: int | None) -> Any:
    runner = None if requests is None else SimpleNamespace(max_bs=requests)
    return SimpleNamespace(speculative_num_draft_tokens=tokens, cuda_graph_runner_for_draft_extend=runner)


@pytest.mark.parametrize(
    ("graphs", "widest", "own"),
    [
        ([1, 4, 8, 64], (8, 64), True),
        ([1, 4, 8, 64], (32, 4), True),  # lookups' state, whose graphs hold four requests
        ([1, 4, 8, 64], (32, 64), False),
        ([1, 4], (32, 4), False),
        ([16, 32], (8, 32), False),  # no graph is for so few requests
        (None, (8, None), True),
        (None, (32, None), False),
    ],
)
def test_a_state_of_its_own_is_built_where_none_holds_eight_requests(
    monkeypatch: pytest.MonkeyPatch, graphs: list[int] | None, widest: tuple[int, int | None], own: bool
) -> None:
    asked: list[tuple[int, list[int] | None]] = []
    monkeypatch.setattr(
        deferred_draft_extend, "draft_extend_state", lambda worker, tokens, sizes: asked.append((tokens, sizes)) or WIDE
    )
    states = [state(1, 64), state(*widest)]
    captured = SimpleNamespace(graphs={3: graphs})
    built = SimpleNamespace(by_steps=states, captured=captured, launch=SimpleNamespace(steps=3))
    worker = SimpleNamespace(speculative_algorithm=SimpleNamespace(is_eagle=lambda: False))
    found = deferred_draft_extend._states(worker, built)
    assert found == [*states, WIDE] if own else found == states
    assert asked == ([(32, graphs and [size for size in graphs if size <= 8])] if own else [])
