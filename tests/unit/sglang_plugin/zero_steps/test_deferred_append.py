"""Hidden states of a block drafter's zero-step rounds: kept, appended together, and the state after an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_adaptive.sglang_plugin import guard
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_append import DeferredAppend

WIDEST = 16


class Appended:
    """The rows that reached the draft's KV: (hidden state, slot, position), one list per append."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[float, int, int]]] = []
        self.fails = False

    def __call__(self, *, target_hidden: Any, cache_loc: Any, positions: Any, commit_lens: Any = None) -> None:
        if self.fails:
            raise RuntimeError("no such thing")
        if commit_lens is not None:  # a round's own append, without SGLang's padding
            target_hidden = target_hidden[: len(cache_loc)]
        rows = zip(target_hidden[:, 0].tolist(), cache_loc.tolist(), positions.tolist(), strict=True)
        self.calls.append(list(rows))

    def sorted(self) -> list[tuple[float, int, int]]:
        return sorted(row for call in self.calls for row in call)


def batch(*rows: int) -> Any:
    return SimpleNamespace(req_pool_indices_cpu=torch.tensor(rows))


def round_of(later: DeferredAppend, append: Appended, at: int, *rows: int) -> bool:
    """Run a zero-step round of the pool's *rows*, all at position *at*; SGLang overwrites its tensors afterwards."""
    own = [float(100 * row + at) for row in rows]
    hidden = torch.tensor([*own, -1.0])[:, None].repeat(1, 3)  # the last row is padding
    slots, positions = torch.tensor([1000 * row + at for row in rows]), torch.full((len(rows),), at)
    done = later.after_verify(
        append, batch(*rows), target_hidden=hidden, cache_loc=slots, positions=positions, commit_lens=slots * 0 + 1
    )
    for tensor in (hidden, slots, positions):
        tensor.fill_(-7)
    return done


def rows_of(at: int, *rows: int) -> list[tuple[float, int, int]]:
    return [(float(100 * row + at), 1000 * row + at, at) for row in rows]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> DeferredAppend:
    monkeypatch.setattr(guard, "require_of_all", lambda error: None)  # no ranks are published here
    pool = SimpleNamespace(req_generation=torch.zeros(8, dtype=torch.int64))
    states: Any = [SimpleNamespace(speculative_num_draft_tokens=WIDEST)]
    return DeferredAppend(Guard("deferred-append"), pool, states, 4)


def test_rounds_are_appended_together_and_each_row_once(later: DeferredAppend) -> None:
    append = Appended()
    assert [round_of(later, append, at, 1, 2) for at in range(4)] == [False, False, False, True]
    assert len(append.calls) == 1
    assert append.sorted() == sorted(row for at in range(4) for row in rows_of(at, 1, 2))
    counted = {"held_rounds": 4, "extends": 1}
    assert later.snapshot() == {"extend_every": 4, "most_extend_every": WIDEST, "reason": None, **counted}


def test_a_block_is_drafted_behind_the_pending_rows_of_its_requests_alone(later: DeferredAppend) -> None:
    append = Appended()
    round_of(later, append, 0, 1, 2, 3)
    later._pool.req_generation[3] += 1  # another request now has its row of the pool
    round_of(later, append, 1, 2, 1)
    later.before_draft(append, batch(3, 1))
    assert append.sorted() == sorted([*rows_of(0, 1), *rows_of(1, 1)])
    later.before_draft(append, batch(3, 1))
    assert len(append.calls) == 1


def test_the_prefix_cache_keeps_what_was_appended(later: DeferredAppend) -> None:
    append = Appended()
    for at in range(3):
        round_of(later, append, at, 1)
    leaving = SimpleNamespace(kv=SimpleNamespace(req_pool_idx=1, cache_protected_len=4, kv_committed_len=20))
    assert later.kept_length(20, leaving) == 17
    round_of(later, append, 3, 1)
    assert later.kept_length(20, leaving) == 20


def test_with_one_round_at_a_time_sglang_appends(later: DeferredAppend) -> None:
    append = Appended()
    later.set_every(1)
    assert round_of(later, append, 5, 1, 2) and later.snapshot()["held_rounds"] == 0
    assert append.calls == [rows_of(5, 1, 2)]


def test_after_an_error_sglang_appends_each_round(later: DeferredAppend, caplog: pytest.LogCaptureFixture) -> None:
    append = Appended()
    round_of(later, append, 0, 1)
    append.fails = True
    later.before_draft(append, batch(1))
    assert later.guard.closed and "disabled deferred-append after an error" in caplog.text
    append.fails = False
    assert round_of(later, append, 1, 1) and later._pending.rounds == 0
    assert append.calls == [rows_of(1, 1)]
