"""Several GPUs that train one draft: each takes a share of the batches, and all use the mean gradients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")


@dataclass(frozen=True)
class Together:
    """This process is number *rank* of *world*, as started by torchrun. The first writes the files."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of_environment(cls) -> Together:
        """Join the other processes if torchrun started this one; otherwise be the only one."""
        if "RANK" not in os.environ:
            return cls()
        if not dist.is_initialized():
            gpu = torch.cuda.is_available()
            if gpu:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            # Gloo for values that the processes agree on: it runs on the CPU, so no GPU has to wait.
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batches: Sequence[T]) -> Sequence[T]:
        """Return this process's share of *batches*; all shares are equal, so that no process waits for another."""
        return batches[self.rank : len(batches) // self.world * self.world : self.world]

    def agreed(self, value: float) -> float:
        """Return the first process's *value*, in all processes."""
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each parameter the mean of the processes' gradients."""
        if self.world == 1:
            return
        gradients = [one.grad for one in parameters if one.grad is not None]
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        for gradient, mean in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def leave(self) -> None:
        """Wait for the others, then leave: a process that ends within its group may be aborted."""
        if self.world > 1:
            dist.all_reduce(torch.zeros(1))
            dist.destroy_process_group()


ALONE = Together()
