"""Packing and spreading compared with lists, acceptance of cut chains, and the choice of drafts to keep.

The kept drafts are compared with every way to spend the budget, in exact fractions.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.sample import sample_tree_cpu
from sglang_adaptive.lab.cpu_engine.kernels.verify import verify_tree_greedy_cpu
from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing, prefixes, ranks

VOCABULARY = 3


@st.composite
def kepts(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw each request's kept drafts, and the steps."""
    steps = draw(st.integers(1, 5))
    return draw(st.lists(st.integers(0, steps), min_size=1, max_size=5)), steps


def packing(kept: list[int], steps: int) -> Packing:
    return Packing.of(torch.tensor(kept), steps, len(kept) + sum(kept))


def links(requests: int, width: int) -> torch.Tensor:
    """Return SGLang's links of uncut chains."""
    return torch.cat((torch.arange(1, width), torch.tensor([-1]))).repeat(requests, 1)


@given(kepts())
def test_the_first_tokens_of_each_request_follow_each_other(batch: tuple[list[int], int]) -> None:
    kept, steps = batch
    found = packing(kept, steps)
    places = [row * (steps + 1) + column for row, count in enumerate(kept) for column in range(count + 1)]
    assert found.places.tolist() == places
    assert found.lengths.tolist() == [count + 1 for count in kept]
    assert found.starts.tolist() == [sum(kept[:row]) + row for row in range(len(kept) + 1)]
    assert found.lengths.dtype == found.starts.dtype == torch.int32  # what attention kernels read


@given(kepts())
def test_what_is_packed_comes_back_to_its_place(batch: tuple[list[int], int]) -> None:
    kept, steps = batch
    found = packing(kept, steps)
    rectangle = torch.arange(1, 1 + 2 * len(kept) * (steps + 1)).view(-1, 2)
    spread = found.spread(found.pack(rectangle)).view(len(kept), steps + 1, 2)
    for row, count in enumerate(kept):
        assert torch.equal(spread[row, : count + 1], rectangle.view_as(spread)[row, : count + 1])
        assert not spread[row, count + 1 :].any()


@given(kepts(), st.integers(0, 999))
def test_greedy_acceptance_is_that_of_shorter_chains(batch: tuple[list[int], int], seed: int) -> None:
    kept, steps = batch
    requests, width = len(kept), steps + 1
    torch.manual_seed(seed)
    drafted, wanted = (torch.randint(0, VOCABULARY, (requests, width)) for _ in range(2))
    drafted[:, 1:] = torch.where(torch.rand(requests, steps) < 0.7, wanted[:, :-1], drafted[:, 1:])
    found = packing(kept, steps)
    target = found.spread(found.pack(wanted.flatten())).view(requests, width)
    chains = links(requests, width)
    found.cut(chains)
    index, count = torch.empty(requests, width, dtype=torch.int64), torch.empty(requests, dtype=torch.int64)
    predicts = torch.zeros(requests * width, dtype=torch.int64)
    verify_tree_greedy_cpu(
        predicts=predicts, accept_index=index, accept_token_num=count, candidates=drafted,
        retrive_index=torch.arange(requests * width).view(requests, width), retrive_next_token=chains,
        retrive_next_sibling=torch.full_like(chains, -1), target_predict=target,
    )  # fmt: skip
    for row, most in enumerate(kept):
        right = 0
        while right < most and drafted[row, right + 1] == wanted[row, right]:
            right += 1
        assert count[row] == right
        written = predicts.view(requests, width)[row, : right + 1]
        assert torch.equal(written, wanted[row, : right + 1])


def test_the_token_after_a_cut_chain_is_drawn_from_the_whole_distribution() -> None:
    """An absent draft was not rejected: its token may be the next one."""
    requests, steps = 1, 2
    found = packing([1], steps)
    chances = torch.zeros(requests, steps + 1, VOCABULARY)
    chances[0, 0, 1] = 1.0  # the first draft is correct
    chances[0, 1] = torch.tensor([0.25, 0.25, 0.5])
    tokens = []
    for coin in (0.1, 0.3, 0.6, 0.9):
        chains = links(requests, steps + 1)
        found.cut(chains)
        predicts, index = torch.zeros(steps + 1, dtype=torch.int32), torch.empty(requests, steps + 1)
        count = torch.empty(requests)
        sample_tree_cpu(
            predicts=predicts, accept_index=index, accept_token_num=count, candidates=torch.tensor([[0, 1, 2]]),
            retrive_index=torch.arange(steps + 1)[None], retrive_next_token=chains,
            retrive_next_sibling=torch.full_like(chains, -1), uniform_samples=torch.full((1, steps + 1), 0.01),
            uniform_samples_for_final_sampling=torch.tensor([coin]), target_probs=chances, threshold_single=1.0,
            threshold_acc=1.0,
        )  # fmt: skip
        assert count.item() == 1
        tokens.append(predicts[1].item())
    assert tokens == [0, 1, 2, 2]


EIGHTHS = 8
"""Products of up to 7 of them are exact in float32."""


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Draw eighths [requests, steps], and a budget."""
    requests, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    chain = st.lists(st.integers(0, EIGHTHS), min_size=steps, max_size=steps)
    return draw(st.lists(chain, min_size=requests, max_size=requests)), draw(st.integers(0, steps))


def products(chain: list[int]) -> list[Fraction]:
    return list(itertools.accumulate((Fraction(one, EIGHTHS) for one in chain), lambda a, b: a * b))


def chosen(chances: list[list[float]], budget: int) -> list[int]:
    found: list[int] = prefixes(ranks(torch.tensor(chances)), budget).tolist()
    return found


@given(batches())
def test_no_other_prefixes_are_worth_more(batch: tuple[list[list[int]], int]) -> None:
    chains, budget = batch
    worth = [[Fraction(0), *itertools.accumulate(products(chain))] for chain in chains]
    ways = itertools.product(range(len(chains[0]) + 1), repeat=len(chains))
    every = [way for way in ways if sum(way) == len(chains) * budget]
    most = max(sum(row[count] for row, count in zip(worth, way, strict=True)) for way in every)
    found = chosen([[one / EIGHTHS for one in chain] for chain in chains], budget)
    assert sum(found) == len(chains) * budget
    assert sum(row[count] for row, count in zip(worth, found, strict=True)) == most


@given(batches())
def test_of_equal_drafts_the_shallower_and_then_the_first_request(batch: tuple[list[list[int]], int]) -> None:
    chains, budget = batch
    drafts = [
        (-product, depth, row) for row, chain in enumerate(chains) for depth, product in enumerate(products(chain))
    ]
    first = sorted(drafts)[: len(chains) * budget]
    wanted = [sum(of == row for _, _, of in first) for row in range(len(chains))]
    assert chosen([[one / EIGHTHS for one in chain] for chain in chains], budget) == wanted


def test_certain_drafts_are_kept_level_by_level() -> None:
    assert chosen([[1.0] * 4] * 3, 2) == [2, 2, 2]


def test_chances_that_are_none_are_the_last_ones() -> None:
    assert chosen([[float("nan"), 1.0], [0.1, 0.1], [float("inf"), 2.0]], 1) == [0, 1, 2]


def test_an_empty_batch_keeps_nothing() -> None:
    assert prefixes(ranks(torch.empty(0, 3)), 2).tolist() == []
