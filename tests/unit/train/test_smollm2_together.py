"""Several processes that train one draft, joined like by torchrun; on the CPU, in forks with PyTorch loaded."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from sglang_adaptive.lab.cpu_engine.server import free_port
from tests import forked_servers
from train.smollm2.together import Together

WORLD = 2


def one_of_two(rank: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    together = Together.of_environment()
    assert (together.rank, together.world, together.first) == (rank, WORLD, rank == 0)
    assert together.agreed(0.5 + rank) == 0.5
    # No rank gets the fifth batch: it would wait for the other's gradients.
    assert list(together.share(["a", "b", "c", "d", "e"])) == [["a", "c"], ["b", "d"]][rank]
    matrix, norm, unused = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))
    matrix.grad, norm.grad = torch.full((2, 3), 1.0 + 2 * rank), torch.arange(3.0) * rank
    together.average_gradients([matrix, norm, unused])
    assert torch.equal(matrix.grad, torch.full((2, 3), 2.0))
    assert torch.equal(norm.grad, torch.arange(3.0) / 2)
    assert unused.grad is None
    together.leave()


def test_one_process_alone_shares_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    together = Together.of_environment()
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, 2.0])
    together.average_gradients([weight])
    assert together.first and together.agreed(0.25) == 0.25 and list(together.share([1, 2, 3])) == [1, 2, 3]
    assert weight.grad.tolist() == [1.0, 2.0]


def test_two_processes_share_batches_and_take_the_mean_of_their_gradients() -> None:
    port = free_port()
    script = f"""
from torch.multiprocessing import start_processes
from tests.unit.train.test_smollm2_together import WORLD, one_of_two
start_processes(one_of_two, ({port},), nprocs=WORLD, start_method="fork")
raise SystemExit(0)
"""
    done = forked_servers.launch([], script)
    assert done.code == 0, done.output
