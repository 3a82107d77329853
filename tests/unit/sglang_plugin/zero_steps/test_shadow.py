"""Shadow drafts at zero steps: how they travel with a round's result, and how the policy uses them."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import pytest
import torch

from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.pending_drafts import SHADOW_ROUNDS, rounds_between_outputs, writes_between
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_draft_extend import ShadowDrafts
from tests.unit.policy.throughput.test_acceptance import EVERY, SHADOW_LADDER, Sense, serve
from tests.unit.policy.throughput.test_cost import profile


def heard(shadow: ShadowDrafts, keys: list[str], *tokens: int) -> list[int]:
    note = RoundNote(drafted(0))
    shadow.attach(note, keys)
    assert note.shadow_accepts == ()
    note.arrived(SimpleNamespace(next_token_ids=torch.tensor(tokens)))
    return list(note.shadow_accepts)


def test_a_batch_is_heard_of_more_often_than_a_single_request() -> None:
    """From eight requests on, two rounds bring at least one token, however rarely extends have an output."""
    assert [writes_between(requests, EVERY) for requests in (1, 7, 8, 15, 16, 24, 64)] == [1, 1, 1, 1, 2, 3, 3]
    assert [writes_between(64, every) for every in (1, 2, 3)] == [0, 0, 3]
    assert all(requests / (EVERY * (writes_between(requests, EVERY) + 1)) >= 0.5 for requests in range(8, 65))


def test_few_requests_are_heard_of_more_often_where_the_policy_wants_it() -> None:
    curious = [rounds_between_outputs(requests, EVERY, True) for requests in range(1, 65)]
    content = [rounds_between_outputs(requests, EVERY, False) for requests in range(1, 65)]
    assert curious[:4] == [SHADOW_ROUNDS, 2 * SHADOW_ROUNDS, EVERY, 15] and content[:4] == [15] * 4
    assert curious[3:] == content[3:]
    assert [rounds_between_outputs(1, every, True) for every in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("hot", [None, torch.tensor([50, 60, 70])])
def test_tokens_are_held_against_what_was_written_request_by_request(hot: torch.Tensor | None) -> None:
    draft = SimpleNamespace(hot_token_id=hot)
    chosen = torch.tensor([[2], [0], [1]])
    shadow = ShadowDrafts.of(draft, chosen, ["a", "b", "c"])
    # b has left, one has joined, and places have changed
    assert heard(shadow, ["c", "new", "a"], *((1, 99, 2) if hot is None else (60, 99, 70))) == [1, 1]
    assert heard(shadow, ["a", "new"], 1, 1) == [0]
    assert heard(shadow, ["another", "new"], 1, 2) == []


SECONDS = {0: 0.007, 1: 0.015, 3: 0.018, 7: 0.024}
"""A round with one step takes more than twice as long as one without, so a probe of it costs much."""


COSTLY = profile({(batch, steps): seconds for batch in (1, 8, 32) for steps, seconds in SECONDS.items()})


def true(p: float) -> float:
    return p


def at_zero(sense: Sense | None, rounds: int = 800) -> ThroughputPolicy:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=SHADOW_LADDER), COSTLY)
    assert serve(policy, 0.05, rounds, 1, sense).count(0) > 0.9 * rounds
    return policy


def rounds_to_leave(sense: Sense | None, curious: bool = True) -> list[int]:
    """Return the rounds of easy text before it drafts, for text that turned at different rounds."""
    found = []
    for turned in range(800, 1200, 50):
        depths = serve(at_zero(sense, turned), 0.95, 1500, 1, sense, curious=curious)
        found.append(next((index for index in range(1495) if min(depths[index : index + 5]) > 1), 1500))
    return found


def test_zero_steps_end_soon_after_the_text_turned_easy() -> None:
    heard_of, content, probed = rounds_to_leave(true), rounds_to_leave(true, curious=False), rounds_to_leave(None)
    assert max(heard_of) <= 8 * EVERY
    assert max(content) <= 24 * EVERY
    assert statistics.median(content) > 1.5 * statistics.median(heard_of)  # it yields a token in 15 rounds
    assert statistics.median(probed) > 4 * max(content)  # probes alone, with their bounded cost, take longer


def test_a_draft_that_stays_bad_is_seldom_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, wants, asked = at_zero(true), ThroughputPolicy.wants_shadow_drafts.fget, []
    monkeypatch.setattr(
        ThroughputPolicy, "wants_shadow_drafts", property(lambda one: asked.append(wants(one)) or asked[-1])
    )
    assert serve(policy, 0.1, 4000, 1, true).count(0) > 3900
    assert 0.02 < sum(asked) / len(asked) < 0.2


def test_depths_are_hardly_probed_at_zero_steps_while_the_draft_is_heard_of() -> None:
    drafted = {sense: sum(map(bool, serve(at_zero(sense), 0.05, 4000, 1, sense))) for sense in (true, None)}
    assert drafted[true] <= 12 < drafted[None]  # looks, of two or three rounds each


def test_simulated_acceptance_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real draft's hits say nothing about what SGLANG_SIMULATE_ACC_LEN accepts."""
    shadow = ShadowDrafts.of(SimpleNamespace(hot_token_id=None), torch.tensor([[1]]), ["a"])
    assert heard(shadow, ["a"], 1) == [1]
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3.5")
    assert heard(shadow, ["a"], 1) == []
