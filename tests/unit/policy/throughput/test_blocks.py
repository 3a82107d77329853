"""Block drafts: the policy on the recorded acceptance of the tiny target's block draft, simulated.

Zero steps show nothing about such a draft, and at batch 1 a round of one draft takes as long as one of fifteen.
"""

from __future__ import annotations

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import engine
from sglang_adaptive.lab.simulate.contenders import StaticPolicy
from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.real import serve
from sglang_adaptive.lab.simulate.real.scenes import Live, Work
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.traces import read
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from tests.checks import ROOT

LADDER = (0, 1, 3, 7, 15)
MILLISECONDS = {1: (5.06, 6.27, 6.28, 6.49, 6.32), 16: (5.42, 6.70, 6.82, 7.22, 8.89)}
"""Of a round of Qwen3-8B's shape on an H200, by batch size.

Source: benchmarks/results/served/blocks-h200-1.json; 1 draft is assumed to take as long as 3, as at batch 1.
"""
SEEDS = range(4)
TOKENS = 192


@pytest.fixture(autouse=True)
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.DraftOutputs, "check", lambda *_: False)


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts.of(read(ROOT / "benchmarks/traces/tiny-blocks.npz"))


def work_of(texts: Texts, size: int, seed: int) -> Work:
    """Return all requests in random order, *size* at a time."""
    order = np.random.default_rng(seed).permutation(len(texts.begin))
    begin = texts.begin[order]
    return Work("blocks", texts, begin, np.minimum(texts.end[order], begin + TOKENS), texts.kind[order], size)


def table_of(size: int) -> FloatArray:
    """Return seconds by batch size and steps; smaller batches take as long as the full one."""
    table = np.full((size + 1, LADDER[-1] + 1), np.nan)
    table[:, list(LADDER)] = np.array(MILLISECONDS[size]) / 1000.0
    return table


def fixed(work: Work, steps: int) -> serve.Served:
    return serve.serve(StaticPolicy(steps), Live(work), LADDER, table_of(work.most), np.ones(1))


def played(work: Work, seed: int) -> serve.Served:
    """Return the results of the policy on *work*, starting without data."""
    policy = ThroughputPolicy(LADDER[-1], ThroughputOptions(candidate_steps=LADDER))
    policy.set_cuda_graph_bs([1, 2, 4, 8, 16])
    clock = 1.0 + 0.01 * np.random.default_rng(seed + 1).standard_normal(4096)
    return serve.serve(policy, Live(work), LADDER, table_of(work.most), clock)


@pytest.mark.parametrize(("size", "least"), [(1, 0.985), (16, 0.98)])
def test_little_is_lost_to_the_best_width(size: int, least: float, texts: Texts) -> None:
    shares = []
    for seed in SEEDS:
        work = work_of(texts, size, seed)
        found = played(work, seed)
        widths = [fixed(work, steps) for steps in LADDER]
        best = max(one.tokens / one.seconds for one in widths)
        shares.append(found.tokens / found.seconds / best)
    assert np.mean(shares) >= least, shares


def test_an_easy_text_is_found_after_a_hard_one(texts: Texts) -> None:
    """No two requests in a row take the policy much longer than the widest block."""
    worst = []
    for seed in SEEDS:
        work = work_of(texts, 1, seed)
        mine, widest = played(work, seed), fixed(work, LADDER[-1])
        took, wanted = (np.diff(one.finished_at[1::2], prepend=0.0) for one in (mine, widest))
        worst.append((wanted / took).min())
    assert min(worst) >= 0.7, worst
