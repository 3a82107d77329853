"""Sampled acceptance of a tree: the output has the target's own distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_adaptive.lab.cpu_engine.kernels.sample import (
    keep_top_k_cpu,
    keep_top_p_cpu,
    sample_chain_cpu,
    sample_tree_cpu,
)

VOCABULARY, REQUESTS = 6, 6_000
CHAIN = ([1, 2, -1], [-1, -1, -1])
"""Root, its child, and the child's child: the first child and the next sibling of each."""
FORK = ([1, -1, -1], [-1, 2, -1])
"""Root and two children."""


def sampled(
    links: tuple[list[int], list[int]], drafts: list[int] | torch.Tensor, target: torch.Tensor, depth: int,
    kernel: Callable[..., None] = sample_tree_cpu, **more: Any,
):  # fmt: skip
    """Return each request's path of nodes and its output tokens, for *drafts* under the links of every tree."""
    torch.manual_seed(5)
    nodes = len(links[0])
    predicts, counts = torch.full((REQUESTS * nodes,), -1), torch.full((REQUESTS,), -1)
    accept_index = torch.full((REQUESTS, depth + 1), -2)
    child, sibling = (torch.tensor([row] * REQUESTS) for row in links)
    kernel(
        predicts=predicts, accept_index=accept_index, accept_token_num=counts,
        candidates=torch.as_tensor(drafts).expand(REQUESTS, nodes), retrive_next_token=child,
        retrive_index=torch.arange(REQUESTS * nodes).view(REQUESTS, nodes), retrive_next_sibling=sibling,
        uniform_samples=torch.rand(REQUESTS, nodes), uniform_samples_for_final_sampling=torch.rand(REQUESTS),
        target_probs=target.expand(REQUESTS, nodes, VOCABULARY),
        **{"threshold_single": 1.0, "threshold_acc": 1.0, **more},
    )  # fmt: skip
    return accept_index, counts, predicts.view(REQUESTS, nodes)


def target() -> torch.Tensor:
    return torch.softmax(torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(2)), -1)


def as_the_target(tokens: torch.Tensor, chances: torch.Tensor) -> bool:
    from scipy.stats import chisquare  # takes seconds to import, and every pytest process collects this file

    counts = torch.bincount(tokens, minlength=VOCABULARY)
    expected = chances.double() / chances.double().sum() * len(tokens)
    return float(chisquare(counts.numpy(), expected.numpy()).pvalue) > 1e-6


@pytest.mark.parametrize("drafts", [[0, 1, 2], [0, 5, 5], [0, 3, 0]])
def test_a_chain_writes_what_the_target_would(drafts: list[int]) -> None:
    chances = target()
    accept_index, counts, predicts = sampled(CHAIN, drafts, chances, depth=2)
    assert as_the_target(predicts[:, 0], chances[0])
    went_on = counts >= 1
    assert torch.equal(went_on, predicts[:, 0] == drafts[1])
    assert as_the_target(predicts[went_on, 1], chances[1])
    to_the_end = counts == 2
    assert as_the_target(predicts[to_the_end, 2], chances[2])
    assert torch.equal((accept_index >= 0).sum(1), counts + 1)
    assert (predicts[~went_on, 1:] == -1).all()


def test_drafts_that_were_sampled_themselves_write_what_the_target_would() -> None:
    chances, drafts = target(), target().flip(0)[:2]
    torch.manual_seed(6)
    drawn = torch.multinomial(drafts, REQUESTS, replacement=True).T
    candidates = torch.cat([torch.zeros(REQUESTS, 1, dtype=torch.long), drawn], dim=1)
    chances_of_drafts = drafts.expand(REQUESTS, 2, VOCABULARY)
    accept_index, counts, written = sampled(
        CHAIN, candidates, chances, 2, sample_chain_cpu, draft_probs=chances_of_drafts
    )
    for place in range(3):
        assert as_the_target(written[counts >= place, place], chances[place])
    taken = torch.minimum(chances[0], drafts[0]).sum()
    assert float((counts >= 1).float().mean()) == pytest.approx(float(taken), abs=0.03)
    assert torch.equal((accept_index >= 0).sum(1), counts + 1)


def test_a_fork_writes_what_the_target_would() -> None:
    chances = target()
    accept_index, counts, predicts = sampled(FORK, [0, 4, 1], chances, depth=1)
    assert as_the_target(predicts[:, 0], chances[0])
    for node, token in ((1, 4), (2, 1)):
        here = accept_index[:, 1] % 3 == node
        assert torch.equal(here & (counts == 1), predicts[:, 0] == token)
        assert as_the_target(predicts[here & (counts == 1), node], chances[node])


def test_thresholds_take_more_children() -> None:
    chances = target()
    for more in ({"threshold_single": float(chances[0, 1])}, {"threshold_acc": 0.0}):
        _, counts, _ = sampled(CHAIN, [0, 1, 2], chances, depth=2, **more)
        assert (counts >= 1).all()


def test_top_k_and_top_p_keep_the_largest() -> None:
    probs = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.4, 0.3, 0.2, 0.1]])
    kept = keep_top_k_cpu(probs, torch.tensor([2, 9]))
    assert torch.allclose(kept, torch.tensor([[0, 2 / 3, 0, 1 / 3], [0.4, 0.3, 0.2, 0.1]]))
    kept = keep_top_p_cpu(probs, torch.tensor([0.7, 0.3]))
    assert torch.allclose(kept, torch.tensor([[0, 2 / 3, 0, 1 / 3], [1.0, 0, 0, 0]]))
