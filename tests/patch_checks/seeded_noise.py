"""0021: A seed's noise depends on tokens, whatever else the batch needs, also with min_p."""

from __future__ import annotations

from unittest import mock

import torch

from sglang_adaptive.lab.cpu_engine.kernels.sample import murmur_hash32_cpu
from tests.patch_checks.registry import repaired

ROWS, VOCABULARY = 300, 40


def _probabilities() -> torch.Tensor:
    return torch.softmax(2.0 * torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1)), -1)


def _drawn(min_p: float | None = None) -> torch.Tensor:
    """Return the tokens drawn from sorted rows, excluding only what *min_p* forbids."""
    from sglang.srt.layers import sampler

    rows = torch.arange(ROWS)
    everything = torch.full((ROWS,), VOCABULARY), torch.ones(ROWS), torch.full((ROWS,), min_p or 0.0)
    with mock.patch.object(sampler, "murmur_hash32", murmur_hash32_cpu):
        return sampler.top_k_top_p_min_p_sampling_from_probs_torch(
            _probabilities(), *everything, min_p is not None, rows, rows
        )


def _plainly_drawn() -> torch.Tensor:
    from sglang.srt.layers import sampler

    rows = torch.arange(ROWS)
    with mock.patch.object(sampler, "murmur_hash32", murmur_hash32_cpu):
        return sampler.sampling_from_probs_torch(_probabilities(), sampling_seed=rows, positions=rows)


@repaired
def a_seed_draws_the_same_token_whether_rows_are_sorted_or_not() -> None:
    differ = int((_drawn() != _plainly_drawn()).sum())
    assert not differ, f"{differ} of {ROWS} tokens differ"


@repaired
def min_p_beside_a_seed_leaves_out_what_is_unlikely() -> None:
    drawn, probabilities = _drawn(min_p=0.3), _probabilities()
    most = probabilities.amax(1)
    kept = probabilities >= 0.3 * most[:, None]
    assert bool(kept.gather(1, drawn.long()[:, None]).all())
    plainly = _plainly_drawn()
    allowed = kept.gather(1, plainly.long()[:, None])[:, 0]
    assert 0 < int(allowed.sum()) < ROWS
    assert torch.equal(drawn[allowed], plainly[allowed]), "a token that min_p allows was drawn without it"
