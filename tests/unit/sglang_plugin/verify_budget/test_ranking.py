"""The drafts to verify against every way of spending the budget, in exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.sglang_plugin.verify_budget.packing import prefixes, ranks

EIGHTHS = 8
"""Products of up to 7 of them are exact in float32."""


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Eighths [requests, steps], and a budget."""
    requests, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    chain = st.lists(st.integers(0, EIGHTHS), min_size=steps, max_size=steps)
    return draw(st.lists(chain, min_size=requests, max_size=requests)), draw(st.integers(0, steps))


def products(chain: list[int]) -> list[Fraction]:
    return list(itertools.accumulate((Fraction(one, EIGHTHS) for one in chain), lambda a, b: a * b))


def kept(chances: list[list[float]], budget: int) -> list[int]:
    found: list[int] = prefixes(ranks(torch.tensor(chances)), budget).tolist()
    return found


@given(batches())
def test_no_other_prefixes_are_worth_more(batch: tuple[list[list[int]], int]) -> None:
    chains, budget = batch
    worth = [[Fraction(0), *itertools.accumulate(products(chain))] for chain in chains]
    ways = itertools.product(range(len(chains[0]) + 1), repeat=len(chains))
    every = [way for way in ways if sum(way) == len(chains) * budget]
    most = max(sum(row[count] for row, count in zip(worth, way, strict=True)) for way in every)
    found = kept([[one / EIGHTHS for one in chain] for chain in chains], budget)
    assert sum(found) == len(chains) * budget
    assert sum(row[count] for row, count in zip(worth, found, strict=True)) == most


@given(batches())
def test_of_equal_drafts_the_shallower_and_then_the_first_request(batch: tuple[list[list[int]], int]) -> None:
    chains, budget = batch
    drafts = [
        (-product, depth, row) for row, chain in enumerate(chains) for depth, product in enumerate(products(chain))
    ]
    chosen = sorted(drafts)[: len(chains) * budget]
    wanted = [sum(of == row for _, _, of in chosen) for row in range(len(chains))]
    assert kept([[one / EIGHTHS for one in chain] for chain in chains], budget) == wanted


def test_certain_drafts_are_kept_level_by_level() -> None:
    assert kept([[1.0] * 4] * 3, 2) == [2, 2, 2]


def test_chances_that_are_none_are_the_last_ones() -> None:
    assert kept([[float("nan"), 1.0], [0.1, 0.1], [float("inf"), 2.0]], 1) == [0, 1, 2]


def test_an_empty_batch_keeps_nothing() -> None:
    assert prefixes(ranks(torch.empty(0, 3)), 2).tolist() == []
