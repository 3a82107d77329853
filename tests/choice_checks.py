"""A greedy choice without drafts, by this package's kernels and by SGLang's verification.

``TRITON_INTERPRET=1 python -m tests.choice_checks`` runs the kernels without a device and prints one JSON object: null
for a check that holds, else why not. tests/gpu/test_choice.py runs the same on a device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.round import Round
from sglang_adaptive.sglang_plugin.zero_steps import choice as zero_step_choice
from tests import checks

INFINITY = float("inf")
OURS, SGLANGS = (torch.zeros(2), torch.ones(2)), (torch.ones(2), torch.ones(2))
"""Outcomes of a round, told apart by what they are."""


def the_likeliest_token_is_chosen() -> None:
    """For vocabularies smaller than the blocks and larger than a block's first turn, and for rows of a wider table."""
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    for requests, width, dtypes in ((1, 3, kinds), (2, 130, kinds[:1]), (1, 70_000, kinds[2:])):
        for dtype in dtypes:
            table = torch.randn(requests, width + 16, dtype=torch.float32, device=_device()).to(dtype)
            _as_torch(table)
        _as_torch(table[:, :width])


def of_equally_likely_tokens_the_first_is_chosen() -> None:
    """As bf16 has few numbers, there are many."""
    for width in (100, 140_000):
        logits = torch.randint(0, 4, (3, width), device=_device()).to(torch.bfloat16)
        logits[1] = 0
        logits[2, -1] = 9
        _as_torch(logits)


def rows_without_a_finite_logit_have_a_choice() -> None:
    """The one of torch: the first NaN, else the first infinity, else the first token."""
    logits = torch.randn(5, 1_500, device=_device())
    logits[0] = -INFINITY
    logits[1, 700:] = -INFINITY
    logits[2, 1_200:] = INFINITY
    logits[3, 900] = logits[3, 1_100] = float("nan")
    logits[4] = float("nan")
    _as_torch(logits)


def it_is_what_sglang_verifies() -> None:
    """Token, accept length and node, of the same types and shapes."""
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    for requests in (1, 4):
        logits = torch.randn(requests, 500, device=_device())
        batch, output = _batch(requests), SimpleNamespace(next_token_logits=logits)
        verified = object.__new__(EagleVerifyInput)
        verified.draft_token_num, verified.topk, verified.spec_steps = 1, 1, 0
        verified.draft_token = torch.zeros(requests, dtype=torch.int64, device=_device())
        ones = torch.full((requests, 1), -1, dtype=torch.int64, device=_device())
        verified.retrieve_index = torch.arange(requests, device=_device()).unsqueeze(1)
        verified.retrieve_next_token, verified.retrieve_next_sibling = ones, ones
        mine, theirs = zero_step_choice.choose(logits), _sglang(verified, batch, output)
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other), (one, other)


def anything_between_logits_and_choice_is_left_to_sglang() -> None:
    """Sampling, penalties, biases, grammars, watermarks, idle batches, drafts, and logits off the device."""
    now, output = Round(None, None), SimpleNamespace(next_token_logits=_OnDevice(2))
    now.exact = None

    def sampled(*given: Any, **options: Any) -> Any:
        return now.sample(lambda *_, **__: SGLANGS, *given, **options)

    for change in (
        {"is_all_greedy": False}, {"acc_additive_penalties": 1}, {"acc_scaling_penalties": 1}, {"logit_bias": 1},
        {"has_custom_logit_processor": True},
    ):  # fmt: skip
        assert sampled(_drafts(1), _batch(2, **change), output) is SGLANGS
    assert sampled(_drafts(1), _batch(2, idle=True), output) is SGLANGS
    assert sampled(_drafts(2), _batch(2), output) is SGLANGS
    assert sampled(_drafts(1), _batch(2), output, object()) is SGLANGS
    assert sampled(_drafts(1), _batch(2), output, watermark_state=object()) is SGLANGS
    on_host = SimpleNamespace(next_token_logits=torch.zeros(2, 9))
    assert sampled(_drafts(1), _batch(2), on_host) is SGLANGS
    assert sampled(_drafts(1), _batch(3), output) is SGLANGS
    assert not now.likeliest.guard.closed
    assert _choosing(OURS, lambda: sampled(_drafts(1), _batch(2), output)) is OURS


def a_fault_leaves_the_choice_to_sglang() -> None:
    """In that round and every later one, and without an exception."""
    now, output, choices = Round(None, None), SimpleNamespace(next_token_logits=_OnDevice(2)), []
    now.exact = None
    for choice in (RuntimeError("no such kernel"), OURS):
        choices.append(_choosing(choice, lambda: now.sample(lambda *_, **__: SGLANGS, _drafts(1), _batch(2), output)))
    assert choices == [SGLANGS, SGLANGS] and now.likeliest.guard.closed, choices


class _OnDevice:
    """What is asked of logits on a device."""

    is_cuda = True

    def __init__(self, requests: int) -> None:
        self.shape = (requests, 9)

    def stride(self, dimension: int) -> int:
        return (9, 1)[dimension]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _as_torch(logits: torch.Tensor) -> None:
    chosen, accept_lens, accept_index = zero_step_choice.choose(logits)
    wanted, requests = torch.argmax(logits, dim=-1).tolist(), logits.shape[0]
    assert chosen.tolist() == wanted, (logits.shape, logits.dtype, chosen.tolist(), wanted)
    assert accept_lens.tolist() == [1] * requests and accept_index.tolist() == [[row] for row in range(requests)]


def _sglang(verified: Any, batch: Any, output: Any) -> tuple[torch.Tensor, ...]:
    from sglang.srt.speculative import eagle_utils

    spec = SimpleNamespace(speculative_use_rejection_sampling=False)
    before, eagle_utils.get_spec = eagle_utils.get_spec, lambda: spec
    try:
        found: tuple[torch.Tensor, ...] = eagle_utils.eagle_sample(verified, batch, output)
    finally:
        eagle_utils.get_spec = before
    return found


def _batch(requests: int, idle: bool = False, **sampling: Any) -> Any:
    plain = dict.fromkeys(("acc_additive_penalties", "acc_scaling_penalties", "logit_bias"))
    plain |= {"is_all_greedy": True, "has_custom_logit_processor": False}
    return SimpleNamespace(
        device=_device(),
        seq_lens=torch.ones(requests),
        sampling_info=SimpleNamespace(**{**plain, **sampling}, has_watermark_candidates=False),
        forward_mode=SimpleNamespace(is_idle=lambda: idle),
        return_logprob=False,
    )


def _drafts(tokens: int) -> Any:
    return SimpleNamespace(draft_token_num=tokens, tree_topk=1)


def _choosing(what: Any, ask: Any) -> Any:
    def choose(_: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what

    before, zero_step_choice.choose = zero_step_choice.choose, choose
    try:
        return ask()
    finally:
        zero_step_choice.choose = before


def seeded_noise_is_that_of_sglang() -> None:
    """The CPU engine's hash of seeds, places and tokens is that of SGLang's kernel."""
    from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel

    from sglang_adaptive.lab.cpu_engine.kernels.sample import murmur_hash32_cpu

    seeds = torch.tensor([0, 7, -1, 2**40 + 3, -(2**63)], dtype=torch.int64, device=_device()).view(torch.uint64)
    positions = torch.tensor([0, 1, 3, 1000, 2**31], device=_device())
    columns = torch.arange(3000, device=_device())
    found = torch.empty((5, 3000), dtype=torch.uint32, device=_device())
    murmur_hash32_kernel[(5, 3)](seeds, positions, columns, found, 5, 3000, BLOCK_SIZE=1024)
    wanted = murmur_hash32_cpu(seeds.cpu(), positions.cpu(), columns.cpu())
    assert found.cpu().long().tolist() == wanted.tolist()


def main() -> None:
    """Run the checks and print what came out."""
    checks.tell("choice_checks", globals())


if __name__ == "__main__":
    main()
