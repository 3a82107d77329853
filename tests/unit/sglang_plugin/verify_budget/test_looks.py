"""What a round reports to the host, compared with the same computed draft by draft."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from sglang_adaptive.runtime import budgets
from sglang_adaptive.runtime.budgets import BINS, UNITS
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.sglang_plugin.verify_budget import looks
from sglang_adaptive.sglang_plugin.verify_budget.packing import prefixes, ranks
from sglang_adaptive.sglang_plugin.verify_budget.rounds import PackedRounds

LADDER = (0, 1, 2, 3, 5)


def drawn(requests: int, steps: int, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Return chances, and how many drafts of each request would be accepted."""
    draw = random.Random(seed)
    chances = [[draw.choice([0.1, 0.3, 0.5, 0.75, 0.9375, 1.0]) for _ in range(steps)] for _ in range(requests)]
    whole = [next((at for at, chance in enumerate(row) if draw.random() > chance), steps) for row in chances]
    return torch.tensor(chances), whole


class Lab:
    """Rounds with a budget, driven like by the hooks; every round is read."""

    def __init__(self, budget: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(budgets, "LOOKS", 1)
        monkeypatch.setattr(budgets, "LEAST_REQUESTS", 1)
        self.rounds = PackedRounds(lambda: budget, ladder=LADDER)

    def told(self, chances: torch.Tensor, whole: list[int]) -> tuple[RoundNote, list[int]]:
        """Return the round's report, and each request's number of verified drafts."""
        requests, steps = chances.shape
        verify = SimpleNamespace(retrieve_next_token=torch.zeros(requests, steps + 1))
        self.rounds.note_drafts(chances)
        packing = self.rounds.packing(verify)
        verified = [steps] * requests if packing is None else (packing.lengths - 1).tolist()
        accepted = [min(pair) for pair in zip(whole, verified, strict=True)]
        self.rounds.take(verify)
        self.rounds.look(verify, torch.tensor(accepted, dtype=torch.int32))
        note = self.note()
        assert note.budget is None and note.evidence is None, "the result has not arrived"
        note.arrived(SimpleNamespace())
        return note, verified

    def note(self) -> RoundNote:
        """Return the note on the round that was read last."""
        note = RoundNote(0)
        self.rounds.attach(note)
        return note


@pytest.mark.parametrize("budget", [None, 1, 2, 3, 5])
@pytest.mark.parametrize(("requests", "steps"), [(1, 5), (6, 3), (9, 5), (20, 2)])
def test_sums_are_those_of_every_draft(
    requests: int, steps: int, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(budget, monkeypatch)
    for seed in range(6):
        chances, whole = drawn(requests, steps, seed)
        told, verified = lab.told(chances, whole)
        packed = budget is not None and budget < steps
        assert told.budget == (budget if packed else None)
        accepted = [min(pair) for pair in zip(whole, verified, strict=True)]
        if packed:
            assert told.verified == verified and sum(verified) == requests * (budget or 0)
            assert all(
                done == count if count < kept else done >= kept
                for done, count, kept in zip(told.completed, accepted, verified, strict=True)
            )
        seen = told.evidence
        assert seen is not None and (seen.steps == steps if packed else 2 <= seen.steps <= steps)
        counts = [min(count, seen.steps) for count in (told.completed if packed else accepted)]
        wanted = [b for b in LADDER if 0 < b < seen.steps and (not packed or b <= (budget or 0))]
        assert seen.whole == sum(counts) and list(seen.ranked) == list(seen.uniform) == wanted
        for b in wanted:
            kept = prefixes(ranks(chances[:, : seen.steps]), b).tolist()
            assert seen.ranked[b] == sum(map(min, counts, kept))
            assert seen.uniform[b] == sum(min(count, b) for count in counts)
        assert (told.trials, told.believed, told.accepted) == by_hand(chances, verified, accepted)


def by_hand(chances: torch.Tensor, verified: list[int], accepted: list[int]) -> tuple[list[int], ...]:
    totals = [[0] * BINS for _ in range(3)]
    for row, kept, right in zip(chances.tolist(), verified, accepted, strict=True):
        for at in range(min(kept, right + 1)):
            into = min(int(row[at] * BINS), BINS - 1)
            for total, more in zip(totals, (1, round(row[at] * UNITS), int(at < right)), strict=True):
                total[into] += more
    return tuple(totals)


def test_smaller_budgets_keep_part_of_what_larger_ones_keep() -> None:
    chances, _ = drawn(16, 5, 3)
    ranked = ranks(chances)
    assert sorted(ranked.flatten().tolist()) == list(range(80))
    assert bool((ranked[:, 1:] > ranked[:, :-1]).all()), "a chain is kept from its begin"


def test_absent_drafts_are_right_as_often_as_their_chances_say() -> None:
    requests, exponent = 20_000, 0.7
    chances = torch.tensor([[0.9, 0.5, 0.3]]).repeat(requests, 1)
    ones = torch.ones(requests, dtype=torch.int64)
    draw = torch.Generator().manual_seed(1)
    done = looks.completed(chances, ones, ones, exponent, draw)
    assert int(done.min()) == 1, "what was verified stands"
    second, third = 0.5**exponent, 0.3**exponent
    assert float((done > 1).float().mean()) == pytest.approx(second, abs=0.02)
    assert float((done > 2).float().mean()) == pytest.approx(second * third, abs=0.02)
    assert int(looks.completed(chances, ones, 0 * ones, exponent, draw).max()) == 0, "nothing follows a rejected one"


def test_sampled_tokens_do_not_depend_on_the_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3).tolist()
    torch.manual_seed(5)
    chances, whole = drawn(8, 5, 1)
    Lab(2, monkeypatch).told(chances, whole)
    assert torch.rand(3).tolist() == wanted


def test_only_some_rounds_say_more_than_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(2, monkeypatch)
    monkeypatch.setattr(budgets, "LOOKS", 3)
    monkeypatch.setattr(budgets, "LEAST_REQUESTS", 8)
    chances, whole = drawn(8, 5, 1)
    found = [lab.told(chances, whole)[0] for _ in range(6)]
    assert [one.evidence is not None for one in found] == [False, False, True] * 2
    assert all(one.verified for one in found)
    few = [lab.told(*drawn(7, 5, 1))[0] for _ in range(6)]
    assert all(one.evidence is None for one in few)


def test_a_round_without_drafts_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(2, monkeypatch)
    verify = SimpleNamespace(retrieve_next_token=torch.zeros(3, 1))
    assert lab.rounds.packing(verify) is None
    lab.rounds.look(verify, torch.zeros(3, dtype=torch.int32))
    assert lab.note().arriving == []


def test_another_round_s_acceptance_is_not_taken_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(2, monkeypatch)
    verify, other = (SimpleNamespace(retrieve_next_token=torch.zeros(8, 6)) for _ in range(2))
    lab.rounds.note_drafts(drawn(8, 5, 1)[0])
    assert lab.rounds.packing(verify) is not None
    assert lab.rounds.take(other) is None
    lab.rounds.look(other, torch.zeros(8, dtype=torch.int32))
    assert lab.note().arriving == []
