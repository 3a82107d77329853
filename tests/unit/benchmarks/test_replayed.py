"""Acceptance replayed by position: the same tokens as replaying the trace by hand, whatever steps run."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.server import simulated
from benchmarks.server.process import Process, replayed
from benchmarks.server.replayed import TRACE_FILE, Replay
from benchmarks.server.replayed_budget import BudgetReplay
from benchmarks.server.simulated import Draw, Meter
from sglang_adaptive.sglang_plugin.scheduler import shadow_acceptance
from sglang_adaptive.sglang_plugin.verify_budget.packed_rounds import PackedRounds

TRACE = Path(__file__).parents[3] / "benchmarks" / "traces" / "tiny.npz"


def request(question: int | None, tokens: int = 1) -> SimpleNamespace:
    parameters = None if question is None else {"trace": question}
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=parameters), output_ids=[0] * tokens)


def test_every_position_accepts_what_was_recorded_there() -> None:
    recorded = bytes(random.Random(1).randrange(8) for _ in range(200))
    replay, one = Replay([bytes(5), recorded]), request(1)
    draw, at = random.Random(2), 0
    while at < len(recorded):
        steps = draw.choice([0, 1, 2, 3, 5, 7])
        replay.begin([one])
        assert replay.concerns(1)
        accepted = replay.accept(steps)[0] if steps else 0  # a round of zero steps asks nobody
        assert accepted == min(recorded[at], steps)
        at += accepted + 1
    replay.begin([one])  # with overlap a round more runs before the last one's end is known
    assert replay.accept(7) == [0]


def test_requests_have_their_own_positions() -> None:
    replay, first, second = Replay([bytes([3, 9, 9, 9, 1]), bytes([0, 2])]), request(0), request(1)
    replay.begin([first])
    assert replay.accept(7) == [3]
    replay.begin([second, first])
    assert replay.accept(7) == [0, 1]
    replay.begin([second])
    assert replay.accept(1) == [1]


def test_shadow_drafts_are_judged_after_the_tokens_on_the_host() -> None:
    replay = Replay([bytes([0, 3, 0])])
    assert [replay.shadow(request(0, tokens)) for tokens in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_a_batch_is_replayed_whole_or_not_at_all() -> None:
    replay = Replay([bytes(3)])
    replay.begin([request(None)])
    assert not replay.concerns(1)
    replay.begin([request(None), request(0)])
    with pytest.raises(RuntimeError, match="1 of 2 requests name a question"):
        replay.concerns(2)
    assert replayed(None) is None and replayed({"trace": "x"}) is None


def test_the_server_s_draw_takes_a_request_s_counts_from_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_FILE, str(TRACE))
    monkeypatch.setattr(simulated, "_same_on_all_ranks", lambda correct: None)
    process = Process(tmp_path / "acceptance", create=True)
    draw, reqs = Draw(process), [request(0), request(30)]
    replay = Replay.of_file(str(TRACE))
    assert replay is not None and Replay.of_file(None) is None
    expected = [request(0), request(30)]
    for steps in (3, 7, 1, 5):
        draw.begin(None, SimpleNamespace(reqs=reqs))
        tokens = torch.zeros(2, steps + 1, dtype=torch.long)
        correct = torch.zeros(2, dtype=torch.int32)
        draw(tokens.int(), tokens.flatten().int(), correct, tokens, tokens, 2, steps)
        replay.begin(expected)
        assert correct.tolist() == replay.accept(steps)
    result = SimpleNamespace(next_token_ids=torch.zeros(2))
    shadow_acceptance.ShadowDrafts(torch.zeros(2), {"a": 0, "b": 1}).attach(result, ["a", "b"])
    drawn = draw.shadow_accepts(shadow_acceptance.shadow_accepts, result, SimpleNamespace(reqs=reqs))
    assert drawn == [replay.shadow(one) for one in reqs]


def test_replayed_tokens_are_what_is_expected(tmp_path: Path) -> None:
    process = Process(tmp_path / "acceptance", create=True)
    Meter(process).count([request(0), request(1)], 9, SimpleNamespace(speculative_num_draft_tokens=8))
    assert process.read().expected == 9


def test_a_budget_accepts_only_what_it_keeps() -> None:
    replay = Replay([bytes([3, 9, 9, 1]), bytes([2, 9, 9])])
    first, second = request(0), request(1)
    replay.begin([first, second])
    assert replay.accept(7, [1, 5]) == [1, 2]
    replay.begin([first, second])
    assert replay.accept(7) == [7, 0], "the first one did not go on behind what was kept"


def test_a_budget_ranks_by_the_trace() -> None:
    """The device keeps what the trace's confidences keep."""
    sure = [[[31, 31, 31]], [[16, 0, 0]], [[31, 20, 0]]]
    budget = BudgetReplay(replay := Replay([bytes([3])] * 3, [torch.tensor(row).numpy() for row in sure]))
    asked = [1]
    rounds = PackedRounds(SimpleNamespace(_draft_worker=None), lambda: asked[0])
    verify = SimpleNamespace(retrieve_next_token=torch.zeros(3, 4), kv_loc_plan=object())
    replay.begin([request(0), request(1), request(2)])
    rounds.note_drafts(torch.full((3, 3), 0.5))
    packing = budget.packing(PackedRounds.packing, rounds, verify)
    assert (packing.lengths - 1).tolist() == [2, 0, 1] == budget.take()
    assert budget.take() is None
    asked[0] = 3
    rounds.note_drafts(torch.full((3, 3), 0.5))
    assert budget.packing(PackedRounds.packing, rounds, verify) is None is budget.take()


def test_behind_the_recorded_text_nothing_is_sure() -> None:
    replay = Replay([bytes([1])], [torch.tensor([[16, 31]]).numpy()])
    one = request(0)
    replay.begin([one])
    assert replay.sure(2) == [[16.5 / 32, 31.5 / 32]]
    replay.accept(2)
    replay.begin([one])
    assert replay.sure(2) == [[0.0, 0.0]]
