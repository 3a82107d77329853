"""Checks the kernels for penalties against the same in torch, which the CPU engine runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from sglang_adaptive.sglang_plugin.stages.exact import penalties
from tests import checks

DEVICE = checks.device()
NONE = (0.0, 0.0, 1.0, 0.0)
MIXED = [
    *((0.7, 0.0, 1.0, 0.7), NONE, (0.1, -0.3, 1.0, 0.1), (0.0, 0.0, 1.3, 1.0)),
    *((1.1, 0.6, 0.8, 1.1), (0.0, 0.4, 1.0, 1.0)),
]
"""By request: frequency, presence and repetition penalty, and what a token adds."""
SHAPES = ((1, 1, 40), (2, 4, 90), (6, 2, 5_000))
"""Requests, tokens per request, and vocabulary."""


def rows_are_those_of_torch() -> None:
    """Also where SGLang's logits are part of a padded vocabulary."""
    one, some, all_kinds = SHAPES
    for shape, stops, padding in ((one, False, 0), (some, False, 38), (some, True, 0), (all_kinds, True, 0)):
        known, verify_input, table, wanted = _given(*shape, stops=stops)
        wide = torch.cat([wanted, wanted.new_ones(len(wanted), padding)], 1)
        logits = wide[:, : shape[2]]
        penalties._penalize(wanted, table, known, verify_input)
        penalties.penalize(logits, table, known, verify_input)
        assert _equal(logits, wanted), (shape, stops)
        assert bool((wide[:, shape[2] :] == 1).all())


def accepted_tokens_are_counted_as_by_torch() -> None:
    """Also a token that is accepted twice; no row changes for a request without penalties."""
    for requests, width, vocabulary in SHAPES:
        known, verify_input, table, _ = _given(requests, width, vocabulary)
        verify_input.draft_token.view(requests, width)[:, -1] = verify_input.draft_token.view(requests, width)[:, 0]
        rows = torch.arange(requests * width, device=DEVICE).view(requests, width)
        for dropped in range(width):
            index = rows.to(torch.int32)
            index[0, width - dropped :] = -1
            mine, theirs = table.clone(), penalties.Sums()
            theirs._table, theirs._batch = table.clone(), known
            penalties.count(mine, known, verify_input.draft_token, index)
            batch = SimpleNamespace(sampling_info=SimpleNamespace(temperatures=known.made_for))
            with patch.object(penalties, "MOST", 0):  # so that torch counts on a device too
                theirs.count(batch, verify_input, index)
            assert torch.equal(mine, theirs._table) and not mine[0].any(), (requests, width, dropped)
            assert not torch.equal(mine, table)


def _given(requests: int, width: int, vocabulary: int, stops: bool = False) -> tuple[Any, Any, Any, Any]:
    """Return what is known of a batch, its verify input, a table and logits."""
    draw = torch.Generator().manual_seed(requests * width * vocabulary)
    each = torch.tensor(MIXED[:requests]).T.contiguous()
    rows = [0 if MIXED[request] == NONE else request + 2 for request in range(requests)]
    positions = torch.randint(5, 20, (requests, 1), generator=draw) + torch.arange(width)
    table = torch.zeros(requests + 2, vocabulary)
    for request, row in enumerate(rows):
        for token in torch.randint(vocabulary, (9,), generator=draw).tolist() * bool(row):
            table[row, token] += each[3, request]
    known = penalties.Batch(
        made_for=torch.ones(requests, 1), whole=torch.tensor([rows, [12] * requests]).to(DEVICE),
        each=each.to(DEVICE), adds=True, scales=True,
        stops=torch.tensor([[3, 7, -1], [11, -1, -1]] * 3)[:requests].to(DEVICE) if stops else None,
    )  # fmt: skip
    drafts = torch.randint(vocabulary, (requests, width), generator=draw)
    drafts[:, width // 2] = drafts[:, 0]
    verify_input = SimpleNamespace(
        draft_token=drafts.flatten().to(DEVICE), positions=positions.flatten().to(DEVICE), draft_token_num=width,
        tree_topk=1,
    )  # fmt: skip
    logits = torch.randn(requests * width, vocabulary, generator=draw)
    return known, verify_input, table.to(DEVICE), logits.to(DEVICE)


def _equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether both are the same; on a device a quotient may differ in its last bit."""
    if DEVICE == "cpu":
        return torch.equal(mine, theirs)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
    return True
