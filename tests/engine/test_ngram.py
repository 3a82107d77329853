"""What was written before drafts, without a model: served at every width of its trees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import WIDTHS
from tests.engine.workload import (
    Case,
    Output,
    adaptive,
    internal_state,
    require_while_switching,
    require_whole_pool,
    rotating_depth,
    run,
)

Expected = Callable[[list[Case]], list[Output]]


@pytest.fixture
def cases(easy: list[str], hard: list[str]) -> list[Case]:
    """Text that repeats itself and text that does not, and ways to end other than by length."""
    return [
        *(Case(prompt) for pair in zip(easy[:4], hard[:4], strict=True) for prompt in pair),
        Case(easy[4] * 4),  # several prefill chunks
        Case(easy[5], max_new_tokens=1),
        Case(easy[6], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
    ]


@pytest.mark.parametrize("at_once", [1, 4])
def test_outputs_while_the_width_switches(
    ngram: CpuServer, expected: Expected, cases: list[Case], at_once: int
) -> None:
    require_while_switching(ngram, cases, expected(cases), at_once, positions=all)


def test_outputs_under_the_policy(ngram: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(ngram, cases, at_once=3) == expected(cases)
    require_whole_pool(ngram)


@pytest.mark.parametrize("steps", WIDTHS)
def test_every_round_runs_at_the_forced_width(ngram: CpuServer, easy: list[str], steps: int) -> None:
    ngram.force_steps(steps)
    before = adaptive(ngram)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(ngram)["meta_info"]
    after, live = adaptive(ngram)["rounds_by_tier"], internal_state(ngram)
    ngram.force_steps(None)
    grown = {tier: after[tier] - before.get(tier, 0) for tier in after if after[tier] != before.get(tier, 0)}
    assert grown == {str(steps): meta["spec_verify_ct"]}
    assert live["speculative_num_draft_tokens"] == steps + 1
    # SGLang reserves breadth times steps, or the width where that is more, for each request.
    assert live["speculative_num_steps"] * live["speculative_eagle_topk"] <= steps + 1
    if steps == 0:
        assert meta["spec_verify_ct"] == 23  # the first token is the prefill's


def test_text_that_was_written_before_is_drafted(ngram: CpuServer, easy: list[str]) -> None:
    ngram.force_steps(WIDTHS[-1])
    case = Case(easy[7])
    case.whole(ngram)
    again = case.whole(ngram)["meta_info"]
    ngram.force_steps(None)
    assert again["spec_verify_ct"] <= 48 / 6  # nearly every draft of eleven is right


def test_the_corpus_reads_what_zero_steps_write(ngram: CpuServer, hard: list[str]) -> None:
    case = Case(hard[7])
    ngram.force_steps(0)
    case.whole(ngram)
    ngram.force_steps(WIDTHS[-1])
    again = case.whole(ngram)["meta_info"]
    ngram.force_steps(None)
    assert again["spec_verify_ct"] <= 48 / 6


def test_sampled_requests_are_served_at_every_width(ngram: CpuServer, easy: list[str]) -> None:
    with rotating_depth(ngram):
        sampled = Case(easy[0], sampling={"temperature": 0.8, "top_p": 0.9, "ignore_eos": True})
        assert [len(output.ids) for output in run(ngram, [sampled] * 4, at_once=2)] == [48] * 4
    require_whole_pool(ngram)


def test_constrained_requests_keep_to_their_grammar(ngram: CpuServer, plain: CpuServer, easy: list[str]) -> None:
    case = Case(easy[1], sampling={"regex": "(ab|cd){3,20}x"})
    wanted = Output.of(case.whole(plain))
    with rotating_depth(ngram):
        assert run(ngram, [case] * 4, at_once=2) == [wanted] * 4
    require_whole_pool(ngram)
