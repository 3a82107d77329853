"""Which ranks run the same batch, and where each attention-DP rank counts its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.server.process import Process


def peers() -> Any:
    """Return the group of the ranks that run this rank's batch: all tensor-parallel ones without attention DP."""
    from sglang.srt.layers.dp_attention import get_dp_tp_group

    return get_dp_tp_group()


def file_of(path: Path, rank: int) -> Path:
    """Return the file that attention-DP rank *rank* counts into, where rank 0, or the only one, has *path*."""
    return path if rank == 0 else path.with_name(f"{path.name}.{rank}")


def counted_into(process: Process) -> Process | None:
    """Return the mapped file for this rank's counts; None where another rank counts the same rounds.

    A rank of attention DP for which the benchmark made no file is not counted.
    """
    from sglang.srt.runtime_context import get_parallel

    if peers().rank_in_group:
        return None
    rank = int(get_parallel().attn_dp_rank)
    path = file_of(process.path, rank)
    if rank == 0:
        return process
    return Process(path) if path.exists() else None
