"""Greedy acceptance of chains, by this package's kernels and by SGLang's verification.

``TRITON_INTERPRET=1 python -m tests.commit_checks`` runs the kernels without a device and prints one JSON object: null
for a check that holds, else why not. tests/gpu/test_short_rounds.py runs the same on a device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.fast_path import greedy_commit
from tests import checks

DEVICE = checks.device()

SHAPES = ((1, 1, 300), (1, 4, 50), (2, 3, 20_000))
"""Requests, tokens of each, and the vocabulary. A row takes half a second where the kernels are interpreted."""


def chains_are_accepted_as_by_sglang() -> None:
    """Tokens, accept lengths, rows, new lengths, and what the draft extend gets: values, types and shapes."""
    for shape in SHAPES:
        given = _given(*shape)
        _equal(greedy_commit.commit(*given), _sglang(*given), shape)


def of_equally_likely_tokens_the_first_is_taken() -> None:
    """As bf16 has few numbers, there are many."""
    shape = (1, 2, 20_000)
    logits, drafts, lengths, width = _given(*shape)
    given = (torch.ones_like(logits), drafts.zero_(), lengths, width)
    _equal(greedy_commit.commit(*given), _sglang(*given), shape)


def what_else_decides_tokens_is_left_to_sglang() -> None:
    """Sampling, penalties, simulated acceptance, logits off the device and of another width."""
    from sglang.srt.speculative import spec_utils

    logits, drafts, lengths, width = _given(2, 4, 30)
    on_device = _OnDevice(logits)
    commit = greedy_commit.GreedyCommit()

    def found(logits: Any = on_device, width: int = width, **sampling: Any) -> Any:
        verify_input = SimpleNamespace(draft_token=drafts, draft_token_num=width)
        return commit.of(verify_input, _batch(lengths, **sampling), logits)

    before, greedy_commit.commit = greedy_commit.commit, lambda *_: "ours"
    try:
        assert found() == "ours"
        for change in (
            {"is_all_greedy": False}, {"acc_additive_penalties": 1}, {"acc_scaling_penalties": 1}, {"logit_bias": 1},
            {"has_custom_logit_processor": True},
        ):  # fmt: skip
            assert found(**change) is None, change
        assert found(logits.cpu()) is None and found(width=3) is None
        spec_utils.SIMULATE_ACC_LEN, kept = 2.0, spec_utils.SIMULATE_ACC_LEN
        try:
            assert found() is None
        finally:
            spec_utils.SIMULATE_ACC_LEN = kept
        assert not commit.guard.closed
    finally:
        greedy_commit.commit = before


class _OnDevice:
    """What is asked of logits on a device."""

    is_cuda = True

    def __init__(self, logits: torch.Tensor) -> None:
        self.shape, self.stride = logits.shape, logits.stride


def _given(requests: int, width: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return logits, drafts of which a random part is right, lengths, and the width."""
    draw = torch.Generator().manual_seed(requests * width * vocabulary)
    logits = torch.randn(requests * width, vocabulary, generator=draw).to(torch.bfloat16)
    drafts = torch.randint(0, vocabulary, (requests, width), generator=draw)
    right = logits.argmax(-1).view(requests, width)
    for request in range(requests):
        count = int(torch.randint(0, width, (), generator=draw))
        drafts[request, 1 : 1 + count] = right[request, :count]
    lengths = torch.randint(1, 100, (requests,), generator=draw)
    return logits.to(DEVICE), drafts.flatten().to(DEVICE), lengths.to(DEVICE), width


def _sglang(logits: torch.Tensor, drafts: torch.Tensor, lengths: torch.Tensor, width: int) -> tuple[Any, ...]:
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
        candidates=drafts.view(requests, width),
        retrieve_index=rows,
        retrieve_next_token=following,
        retrieve_next_sibling=torch.full((requests, width), -1, device=device),
        target_predict=torch.argmax(logits, dim=-1).view(requests, width),
        topk=1,
    )
    lens = accepted + 1
    new, bonus, _, extend = prepare_verify_commit_outputs(predict, index, lens, lengths, num_draft_tokens=width)
    return predict, lens, index, new, bonus, extend


def _equal(mine: tuple[Any, ...], theirs: tuple[Any, ...], which: Any) -> None:
    for place, (one, other) in enumerate(zip([*mine[:-1], *mine[-1]], [*theirs[:-1], *theirs[-1]], strict=True)):
        alike = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        assert alike, (which, place, one, other)


def _batch(lengths: torch.Tensor, **sampling: Any) -> Any:
    plain = dict.fromkeys(("acc_additive_penalties", "acc_scaling_penalties", "logit_bias"))
    plain |= {"is_all_greedy": True, "has_custom_logit_processor": False}
    return SimpleNamespace(seq_lens=lengths, sampling_info=SimpleNamespace(**{**plain, **sampling}))


if __name__ == "__main__":
    checks.tell("commit_checks", globals())
