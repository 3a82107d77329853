"""Shares one set of fa3's page tables among all runtime states, instead of one set a backend.

Every attention backend of fa3 with CUDA graphs keeps four tables of (largest batch, pages of the longest context) int32
numbers: 0.13 GB at batch 64 and 131,072 tokens, 0.5 GB at batch 256. The state of n steps has n + 1 such backends: one
for verify, one for the draft extend, and one for each draft but the first. Each uses one of its four tables.

Only one state runs at a time, and a table is filled again before each graph that reads it, so all states can share
them. The draft passes of a round are filled together and then run; they can share a table too. A request's row has the
same entries for each of them; it is one token longer for each later draft, and each reads up to its own length.
With multi-layer EAGLE every layer of the draft has a backend for the extend, and these run one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

logger = logging.getLogger(__name__)

_TABLES = {
    "decode_cuda_graph_metadata": ("page_table", "page_table_draft_decode", "swa_page_table", "strided_indices"),
    "target_verify_metadata": ("page_table", "swa_page_table", "strided_indices"),
    "draft_extend_metadata": ("page_table", "swa_page_table", "strided_indices"),
}
"""Attributes of the backend, each a dict, and its entries that are tables; strided indices are never written."""

_shared: dict[Hashable, Any] = {}


def share(runner: Any) -> None:
    """Before DecodeCudaGraphRunner.capture: replace its backends' tables by those of the first backends."""
    try:
        for backend in getattr(runner.attn_backend, "attn_backends", (runner.attn_backend,)):
            if type(backend).__name__ == "FlashAttentionBackend":
                _share(backend)
    except Exception:
        logger.exception("adaptive: a depth keeps page tables of its own")


def share_layers(extend: Any) -> None:
    """Before the graphs of a multi-layer draft extend are captured: share the tables among its layers too.

    Every layer fills in the same slots of the same requests, and reads them before the next layer runs.
    """
    for runner in extend.runners:
        if runner is not None:
            share(runner)


def _share(backend: Any) -> None:
    for attribute, names in _TABLES.items():
        tables = getattr(backend, attribute, {})
        for name in names:
            own = tables.get(name)
            if own is not None:
                alike = (backend.is_draft_runner, attribute, name, own.shape, own.dtype, own.device)
                tables[name] = _shared.setdefault(alike, own)
