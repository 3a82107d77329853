"""Checks the kernels for greedy rounds against SGLang's verify: choices without drafts and accepted chains."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from sglang_adaptive.sglang_plugin.stages.fast_path import greedy
from sglang_adaptive.sglang_plugin.stages.fast_path.greedy import LikeliestTokens
from tests import checks

DEVICE = checks.device()

INFINITY = float("inf")
OURS, SGLANGS = (torch.zeros(2), torch.ones(2)), (torch.ones(2), torch.ones(2))
"""Outcomes of a round, compared by identity."""
NOT_GREEDY: list[dict[str, Any]] = [
    *({"is_all_greedy": False}, {"acc_additive_penalties": 1}, {"acc_scaling_penalties": 1}, {"logit_bias": 1}),
    {"has_custom_logit_processor": True},
]
"""Sampling parameters of batches that do not take the most likely token."""
SHAPES = ((1, 1, 300), (1, 4, 50), (2, 3, 20_000))
"""Requests, tokens per request, and vocabulary. Interpreted kernels take half a second per row."""


def the_likeliest_token_is_chosen() -> None:
    """Covers vocabularies smaller than a block and larger than a block's first pass, and rows of a wider table."""
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    for requests, width, dtypes in ((1, 3, kinds), (2, 130, kinds[:1]), (1, 70_000, kinds[2:])):
        for dtype in dtypes:
            table = torch.randn(requests, width + 16, dtype=torch.float32, device=DEVICE).to(dtype)
            _as_torch(table)
        _as_torch(table[:, :width])


def of_equally_likely_tokens_the_first_is_chosen() -> None:
    """Ties are common because bf16 has few distinct values."""
    for width in (100, 140_000):
        logits = torch.randint(0, 4, (3, width), device=DEVICE).to(torch.bfloat16)
        logits[1] = 0
        logits[2, -1] = 9
        _as_torch(logits)


def rows_without_a_finite_logit_have_a_choice() -> None:
    """The choice is torch's: the first NaN, else the first infinity, else the first token."""
    logits = torch.randn(5, 1_500, device=DEVICE)
    logits[0] = -INFINITY
    logits[1, 700:] = -INFINITY
    logits[2, 1_200:] = INFINITY
    logits[3, 900] = logits[3, 1_100] = float("nan")
    logits[4] = float("nan")
    _as_torch(logits)


def it_is_what_sglang_verifies() -> None:
    from sglang.srt.speculative import eagle_utils
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    for requests in (1, 4):
        logits = torch.randn(requests, 500, device=DEVICE)
        batch, output = _batch(requests), SimpleNamespace(next_token_logits=logits)
        verified = object.__new__(EagleVerifyInput)
        verified.draft_token_num, verified.topk, verified.spec_steps = 1, 1, 0
        verified.draft_token = torch.zeros(requests, dtype=torch.int64, device=DEVICE)
        ones = torch.full((requests, 1), -1, dtype=torch.int64, device=DEVICE)
        verified.retrieve_index = torch.arange(requests, device=DEVICE).unsqueeze(1)
        verified.retrieve_next_token, verified.retrieve_next_sibling = ones, ones
        with patch.object(eagle_utils, "get_spec", lambda: SimpleNamespace(speculative_use_rejection_sampling=False)):
            _require_equal(greedy.choose(logits), eagle_utils.eagle_sample(verified, batch, output))


def anything_between_logits_and_choice_is_left_to_sglang() -> None:
    likeliest, output = LikeliestTokens(), SimpleNamespace(next_token_logits=_OnDevice(torch.zeros(2, 9)))

    def sampled(*given: Any, **options: Any) -> Any:
        return likeliest.sample(lambda *_, **__: SGLANGS, *given, **options)

    for change in NOT_GREEDY:
        assert sampled(_drafts(1), _batch(2, **change), output) is SGLANGS
    assert sampled(_drafts(1), _batch(2, idle=True), output) is SGLANGS
    assert sampled(_drafts(2), _batch(2), output) is SGLANGS
    assert sampled(_drafts(1), _batch(2), output, object()) is SGLANGS
    assert sampled(_drafts(1), _batch(2), output, watermark_state=object()) is SGLANGS
    on_host = SimpleNamespace(next_token_logits=torch.zeros(2, 9))
    assert sampled(_drafts(1), _batch(2), on_host) is SGLANGS
    assert sampled(_drafts(1), _batch(3), output) is SGLANGS
    assert not likeliest.guard.closed
    with patch.object(greedy, "choose", return_value=OURS):
        assert sampled(_drafts(1), _batch(2), output) is OURS


def a_fault_leaves_the_choice_to_sglang() -> None:
    """SGLang chooses in that round and in every later one; nothing is raised."""
    likeliest = LikeliestTokens()
    given = _drafts(1), _batch(2), SimpleNamespace(next_token_logits=_OnDevice(torch.zeros(2, 9)))
    with patch.object(greedy, "choose", side_effect=[RuntimeError("no such kernel"), OURS]):
        choices = [likeliest.sample(lambda *_, **__: SGLANGS, *given) for _ in range(2)]
    assert choices == [SGLANGS, SGLANGS] and likeliest.guard.closed, choices


def chains_are_accepted_as_by_sglang() -> None:
    """Also where all tokens are equally likely, so that the first is taken."""
    given = [_given(*shape) for shape in SHAPES]
    logits, drafts, *more = _given(1, 2, 20_000)
    for one in (*given, (torch.ones_like(logits), drafts.zero_(), *more)):
        found, wanted = greedy.commit(*one), _committed_by_sglang(*one)
        _require_equal([*found[:-1], *found[-1]], [*wanted[:-1], *wanted[-1]])


def what_else_decides_tokens_is_left_to_sglang() -> None:
    from sglang.srt.speculative import spec_utils

    logits, drafts, lengths, width = _given(2, 4, 30)
    on_device = _OnDevice(logits)

    def found(logits: Any = on_device, width: int = width, **sampling: Any) -> Any:
        verify_input = SimpleNamespace(draft_token=drafts, draft_token_num=width)
        return greedy.committed(verify_input, _batch(len(lengths), lengths=lengths, **sampling), logits)

    with patch.object(greedy, "commit", lambda *_: "ours"):
        assert found() == "ours"
        for change in NOT_GREEDY:
            assert found(**change) is None, change
        assert found(logits.cpu()) is None and found(width=3) is None
        with patch.object(spec_utils, "SIMULATE_ACC_LEN", 2.0):
            assert found() is None


def seeded_noise_is_that_of_sglang() -> None:
    from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel

    from sglang_adaptive.lab.cpu_engine.kernels.sample import murmur_hash32_cpu

    seeds = torch.tensor([0, 7, -1, 2**40 + 3, -(2**63)], dtype=torch.int64, device=DEVICE).view(torch.uint64)
    positions = torch.tensor([0, 1, 3, 1000, 2**31], device=DEVICE)
    columns = torch.arange(3000, device=DEVICE)
    found = torch.empty((5, 3000), dtype=torch.uint32, device=DEVICE)
    murmur_hash32_kernel[(5, 3)](seeds, positions, columns, found, 5, 3000, BLOCK_SIZE=1024)
    wanted = murmur_hash32_cpu(seeds.cpu(), positions.cpu(), columns.cpu())
    assert found.cpu().long().tolist() == wanted.tolist()


class _OnDevice:
    """The attributes of logits on a device that are read."""

    is_cuda = True

    def __init__(self, logits: torch.Tensor) -> None:
        self.shape, self.stride = logits.shape, logits.stride


def _as_torch(logits: torch.Tensor) -> None:
    chosen, accept_lens, accept_index = greedy.choose(logits)
    wanted, requests = torch.argmax(logits, dim=-1).tolist(), logits.shape[0]
    assert chosen.tolist() == wanted, (logits.shape, logits.dtype, chosen.tolist(), wanted)
    assert accept_lens.tolist() == [1] * requests and accept_index.tolist() == [[row] for row in range(requests)]


def _batch(requests: int, idle: bool = False, lengths: Any = None, **sampling: Any) -> Any:
    plain = dict.fromkeys(("acc_additive_penalties", "acc_scaling_penalties", "logit_bias"))
    plain |= {"is_all_greedy": True, "has_custom_logit_processor": False}
    return SimpleNamespace(
        device=DEVICE,
        seq_lens=torch.ones(requests) if lengths is None else lengths,
        sampling_info=SimpleNamespace(**{**plain, **sampling}, has_watermark_candidates=False),
        forward_mode=SimpleNamespace(is_idle=lambda: idle),
        return_logprob=False,
    )


def _drafts(tokens: int) -> Any:
    return SimpleNamespace(draft_token_num=tokens, tree_topk=1)


def _given(requests: int, width: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return logits, drafts of which a random part is correct, lengths, and the width."""
    draw = torch.Generator().manual_seed(requests * width * vocabulary)
    logits = torch.randn(requests * width, vocabulary, generator=draw).to(torch.bfloat16)
    drafts = torch.randint(0, vocabulary, (requests, width), generator=draw)
    right = logits.argmax(-1).view(requests, width)
    for request in range(requests):
        count = int(torch.randint(0, width, (), generator=draw))
        drafts[request, 1 : 1 + count] = right[request, :count]
    lengths = torch.randint(1, 100, (requests,), generator=draw)
    return logits.to(DEVICE), drafts.flatten().to(DEVICE), lengths.to(DEVICE), width


def _committed_by_sglang(
    logits: torch.Tensor, drafts: torch.Tensor, lengths: torch.Tensor, width: int
) -> tuple[Any, ...]:
    from sglang.kernels.ops.speculative.eagle import prepare_verify_commit_outputs
    from sglang.srt.speculative import eagle_utils

    requests, device = lengths.shape[0], DEVICE
    rows = torch.arange(requests * width, device=device).view(requests, width)
    following = torch.arange(1, width + 1, device=device).repeat(requests, 1)
    following[:, -1] = -1
    predict, index, accepted = eagle_utils.verify_tree_greedy_func(
        predicts=torch.zeros(requests * width, dtype=torch.int32, device=device),
        accept_index=torch.full((requests, width), -1, dtype=torch.int32, device=device),
        accept_token_num=torch.empty(requests, dtype=torch.int32, device=device),
        candidates=drafts.view(requests, width), retrieve_index=rows, retrieve_next_token=following,
        retrieve_next_sibling=torch.full((requests, width), -1, device=device),
        target_predict=torch.argmax(logits, dim=-1).view(requests, width), topk=1,
    )  # fmt: skip
    lens = accepted + 1
    new, bonus, _, extend = prepare_verify_commit_outputs(predict, index, lens, lengths, num_draft_tokens=width)
    return predict, lens, index, new, bonus, extend


def _require_equal(mine: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other), (one, other)
