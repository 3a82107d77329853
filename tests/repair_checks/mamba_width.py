"""A Mamba2 verify writes its states where the commit reads them, also below the maximum draft tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

HEADS, HEAD_SIZE, STATE_SIZE, GROUPS = 2, 4, 8, 1
REQUESTS, WIDEST = 3, 6


def a_round_writes_each_requests_states_in_its_own_rows() -> None:
    """Compares a round of all requests with the same requests one by one, each in its own buffer."""
    import torch

    for tokens in (1, 2, 4, WIDEST):
        together = states(tokens, range(REQUESTS))
        for request in range(REQUESTS):
            alone = states(tokens, [request])
            same = torch.equal(together[request, :tokens], alone[0, :tokens])
            assert same, f"{tokens} tokens of {WIDEST}: request {request} has other states than alone"
            more = together[request, tokens:].any()
            assert not more, f"{tokens} tokens: request {request} has more states than tokens"


def states(tokens: int, requests: Any) -> Any:
    """Return the states of a verify of *requests*: [requests, WIDEST, heads, head size, state size]."""
    import torch
    from sglang.kernels.ops.mamba.triton_ops import ssu_dispatch

    drawn = torch.Generator().manual_seed(3)
    chosen = list(requests)

    def draw(*shape: int) -> Any:
        return torch.randn(REQUESTS, *shape, generator=drawn)[chosen].contiguous()

    state, x = draw(HEADS, HEAD_SIZE, STATE_SIZE), draw(WIDEST, HEADS, HEAD_SIZE)[:, :tokens].contiguous()
    dt = draw(WIDEST, HEADS, 1)[:, :tokens].contiguous().expand(-1, -1, -1, HEAD_SIZE)
    b, c = (draw(WIDEST, GROUPS, STATE_SIZE)[:, :tokens].contiguous() for _ in range(2))
    buffer = torch.zeros(len(chosen), WIDEST, HEADS, HEAD_SIZE, STATE_SIZE)
    by_head = torch.zeros(HEADS, 1).expand(-1, HEAD_SIZE)
    rows = torch.arange(len(chosen), dtype=torch.int32)
    decay = torch.full((HEADS, 1, 1), -0.5).expand(-1, HEAD_SIZE, STATE_SIZE)
    kernels = "sglang.kernels.ops.mamba.triton_ops.mamba_ssm."
    device = mock.patch("torch.get_device_module", return_value=SimpleNamespace(device=lambda index: mock.MagicMock()))
    with device, mock.patch(kernels + "is_arch_support_pdl", return_value=False):
        ssu_dispatch.TritonSSUBackend()(
            state, x, dt, decay, b, c, D=torch.ones(HEADS, 1).expand(-1, HEAD_SIZE), dt_bias=by_head, dt_softplus=True,
            state_batch_indices=rows, out=torch.empty_like(x), disable_state_update=True,
            intermediate_states_buffer=buffer, cache_steps=tokens, retrieve_parent_token=None,
            intermediate_state_indices=rows,
        )  # fmt: skip
    return buffer
