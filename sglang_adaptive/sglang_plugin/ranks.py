"""The rank of this process's scheduler among those of its server."""

from __future__ import annotations

from typing import Any


def of_the_batch() -> Any:
    """Return SGLang's group of the tensor-parallel ranks that run the same batches."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return parallel.tp_group if parallel.attn_dp_size == 1 else parallel.attn_tp_group


def is_first() -> bool:
    """Whether this is the first tensor-parallel rank of its replica."""
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().tp_group.rank_in_group == 0)


def replica() -> int:
    """Return the data-parallel rank; 0 with one replica."""
    from sglang.srt.runtime_context import get_parallel

    return get_parallel().dp_rank or 0
