"""NGRAM's trees of any width: links and masks, roots, and the lengths known to the host."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.overlap_utils import decide_needs_cpu_seq_lens
from sglang.srt.runtime_context import get_context, get_spec
from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

from sglang_adaptive.lab.cpu_engine.kernels.tree import reconstruct_indices_from_tree_mask
from sglang_adaptive.sglang_plugin import guard
from sglang_adaptive.sglang_plugin.repairs import at_the_widest
from sglang_adaptive.sglang_plugin.workers import ngram_inputs
from sglang_adaptive.sglang_plugin.workers.choice import needs_lengths_on_host
from sglang_adaptive.sglang_plugin.workers.ngram_inputs import PROMPT_TOKENS, Prompts, cut, tokens_at_most
from tests.token_trees import links, tree_batches

WIDEST = 12


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Draw parents and tokens of 1 to 3 trees in the corpus's form: parents first, then padding below the root."""
    parents, tokens = [], []
    for _ in range(draw(st.integers(1, 3))):
        real = draw(st.integers(1, WIDEST))
        parents.append([-1, *(draw(st.integers(0, node - 1)) if node < real else 0 for node in range(1, WIDEST))])
        tokens.append([draw(st.integers(1, 99)) if node < real else 0 for node in range(WIDEST)])
    return parents, tokens


def masks(parents: list[list[int]]) -> np.ndarray:
    """Return [trees, n, n]: entry (i, j) is 1 if j is i or an ancestor of i."""
    found = np.tile(np.eye(len(parents[0]), dtype=np.int64), (len(parents), 1, 1))
    for mask, tree in zip(found, parents, strict=True):
        for node, parent in enumerate(tree[1:], start=1):
            mask[node] |= mask[parent]
    return found


def paths(tokens: np.ndarray, mask: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(tokens[seen.nonzero()]) for seen in mask]


@given(answers(), st.integers(1, WIDEST))
def test_what_is_kept_is_a_tree_of_the_same_paths(answer: tuple[list[list[int]], list[list[int]]], width: int) -> None:
    parents, tokens = answer
    mask = masks(parents)
    kept_tokens, kept_mask = cut(np.array(tokens).ravel(), mask.ravel(), WIDEST, width)
    kept_tokens, kept_mask = kept_tokens.reshape(-1, width), kept_mask.reshape(-1, width, width)
    for tree, whole, seen, before in zip(kept_tokens, tokens, kept_mask, mask, strict=True):
        assert tree[0] == whole[0] and (np.triu(seen, 1) == 0).all() and (np.diag(seen) == 1).all()
        # Each node's ancestors are kept with it, so each path is one of the wide tree's.
        assert not set(paths(tree, seen)) - set(paths(np.array(whole), before))
        real = sum(token > 0 for token in whole)
        assert sum(token > 0 for token in tree) == min(real, width)


@given(st.integers(1, WIDEST - 1), st.data())
def test_the_longest_continuation_is_kept_first(width: int, data: st.DataObject) -> None:
    """Half the nodes form a chain, the rest are single tokens: a narrow round verifies the chain."""
    chain = [-1, *range(WIDEST // 2), *[0] * (WIDEST - 1 - WIDEST // 2)]
    tokens = np.arange(100, 100 + WIDEST)
    tree, _ = cut(tokens, masks([chain]).ravel(), WIDEST, width)
    assert tree[: WIDEST // 2 + 1].tolist() == tokens[: min(width, WIDEST // 2 + 1)].tolist()


@given(tree_batches(), st.integers(0, 50))
def test_links_of_a_mask_are_those_of_its_tree(batch: tuple, length: int) -> None:
    trees, _, _ = batch
    bs, n = len(trees), len(trees[0].nodes)
    mask = torch.zeros(bs, n, n, dtype=torch.bool)
    for row, tree in enumerate(trees):
        for node in tree.nodes:
            mask[row, node.number, [above.number for above in node.ancestors()]] = True
    lengths = torch.arange(length, length + bs)
    positions, found = torch.empty(bs * n, dtype=torch.long), torch.empty(3, bs, n, dtype=torch.long)
    reconstruct_indices_from_tree_mask(mask.flatten(), lengths, positions, *found, bs, n)
    for got, wanted in zip(found, links(trees), strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(positions.view(bs, n), lengths[:, None] + mask.sum(-1) - 1)


def test_a_mask_is_never_too_short() -> None:
    slots = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=slots)) for slots in (96, 4000)]
    batch = SimpleNamespace(reqs=slots, seq_lens_cpu=torch.tensor([80, 1000]))
    assert tokens_at_most(batch, context_len=1024) == 1080
    batch.seq_lens_cpu = None
    assert tokens_at_most(batch, context_len=1024) == 96 + 1024


DEVICE_ONLY, ON_HOST = SimpleNamespace(needs_cpu_seq_lens=False), SimpleNamespace(needs_cpu_seq_lens=True)


@pytest.mark.parametrize(
    ("algorithm", "adaptive", "backends", "needed", "by_sglang"),
    [
        ("NGRAM", True, (DEVICE_ONLY,), False, True),
        ("NGRAM", True, (DEVICE_ONLY, ON_HOST), True, True),
        ("NGRAM", False, (DEVICE_ONLY,), True, True),
        ("EAGLE3", True, (DEVICE_ONLY,), False, False),
    ],
)
def test_an_adaptive_ngram_needs_what_its_backends_need(
    algorithm: str, adaptive: bool, backends: tuple[Any, ...], needed: bool, by_sglang: bool
) -> None:
    flags = {"speculative_algorithm": algorithm, "speculative_adaptive": adaptive}
    with get_context().override_server_args(), get_spec().override(**flags):
        assert needs_lengths_on_host(decide_needs_cpu_seq_lens, backends) is needed
        assert decide_needs_cpu_seq_lens(backends) is by_sglang
        assert get_spec().speculative_algorithm == algorithm


DEPTH = 18


def asked(first: int, tokens: int, *written: int) -> SimpleNamespace:
    """Return a request whose prompt counts up from *first*."""
    prompt = array("q", range(first, first + tokens))
    return SimpleNamespace(rid=f"from {first}", origin_input_ids_unpadded=prompt, output_ids=list(written))


@pytest.fixture
def corpus() -> NgramCorpus:
    return NgramCorpus(DEPTH, draft_token_num=8)


def drafted(corpus: NgramCorpus, behind: int) -> list[int]:
    """Return the drafts after the DEPTH tokens up to *behind*, from a corpus of counting prompts."""
    corpus.synchronize()
    tokens, _ = corpus.batch_get(["a"], [list(range(behind - DEPTH + 1, behind + 1))], [behind])
    corpus.erase_match_state(["a"])
    return [token for token in tokens.tolist()[1:] if token]


def test_the_corpus_reads_a_prompt_a_part_a_round(corpus: NgramCorpus) -> None:
    """It reads to the end, including what spans two parts."""
    prompts, one = Prompts(DEPTH), asked(1, 3 * PROMPT_TOKENS - 50)
    prompts.join([one])
    for rounds in (1, 2, 3):
        prompts.read(corpus)
        known = min(rounds * PROMPT_TOKENS, 3 * PROMPT_TOKENS - 50)
        assert drafted(corpus, known - 7) == list(range(known - 6, known + 1))
        assert drafted(corpus, known + 20) == []
    for cut_at in (PROMPT_TOKENS, 2 * PROMPT_TOKENS):
        for before in range(8):
            assert drafted(corpus, cut_at - before) == list(range(cut_at - before + 1, cut_at - before + 8))


def test_a_round_reads_so_many_tokens_of_all_prompts(corpus: NgramCorpus) -> None:
    prompts, first, second = Prompts(DEPTH), asked(1, PROMPT_TOKENS - 56), asked(10_000, 1000)
    prompts.join([first, second])
    prompts.read(corpus)
    assert drafted(corpus, 100) == list(range(101, 108))
    assert drafted(corpus, 10_040) == list(range(10_041, 10_048))
    assert drafted(corpus, 10_080) == []
    prompts.read(corpus)
    assert drafted(corpus, 10_200) == list(range(10_201, 10_208))


def test_more_prompts_than_can_be_read_wait_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are dropped; one prompt longer than the bound is kept."""
    monkeypatch.setattr(ngram_inputs, "MOST_UNREAD", 100)
    prompts = Prompts(DEPTH)
    prompts.join([asked(1, 60), asked(1000, 60), asked(2000, 30)])
    assert [prompt[0] for prompt, _ in prompts._unread.values()] == [1000, 2000]
    prompts.join([asked(3000, 300)])
    assert [prompt[0] for prompt, _ in prompts._unread.values()] == [3000]


def test_an_id_that_is_used_again_brings_another_prompt() -> None:
    prompts, one = Prompts(DEPTH), asked(1, 60)
    prompts.join([one])
    prompts.join([one])
    again = asked(500, 60)
    again.rid = one.rid
    prompts.join([again])
    assert [(prompt[0], begin) for prompt, begin in prompts._unread.values()] == [(500, 0)]


def test_an_empty_corpus_reads_prompts_again(corpus: NgramCorpus) -> None:
    prompts, one = Prompts(DEPTH), asked(1, 60)
    prompts.join([one])
    prompts.read(corpus)
    corpus.synchronize()  # or its thread would insert them after the reset
    corpus.reset()
    prompts.read(corpus)
    assert drafted(corpus, 30) == []
    prompts.forget()
    prompts.join([one])
    prompts.read(corpus)
    assert drafted(corpus, 30) == list(range(31, 38))


def test_a_request_that_has_written_is_not_read_again(corpus: NgramCorpus) -> None:
    """Such a request decodes in a mixed batch, or comes back."""
    prompts = Prompts(DEPTH)
    prompts.join([asked(1, 60, 7)])
    prompts.read(corpus)
    assert drafted(corpus, 30) == []


def test_a_corpus_that_fails_goes_without_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "require_of_all", lambda error: None)  # here there is one rank and no group
    calls: list[Any] = []

    def failing(parts: Any) -> None:
        calls.append(parts)
        raise RuntimeError("no room")

    prompts = Prompts(DEPTH)
    for _ in range(2):
        prompts.join([asked(1, 60)])
        prompts.read(SimpleNamespace(batch_put=failing))
    assert prompts.guard.error == "RuntimeError: no room" and len(calls) == 1


@pytest.mark.parametrize(("topk", "steps"), [(1, 15), (10, 1)])
def test_slots_are_sized_for_the_steps_that_sglang_means(topk: int, steps: int) -> None:
    """NGRAM's steps are width / topk; SGLang reserves topk times as many slots."""
    seen = []

    def size() -> int:
        seen.append((get_spec().speculative_num_draft_tokens, get_spec().speculative_num_steps))
        return 0

    flags = {"speculative_adaptive": True, "speculative_eagle_topk": topk, "speculative_num_draft_tokens": 16}
    with get_context().override_server_args(), get_spec().override(**flags):
        at_the_widest(size)
    assert seen == [(16, steps)]
