"""fa3's page tables, one set for all depths instead of one a draft of each depth.

Every attention backend of fa3 that CUDA graphs are captured on keeps four tables of (largest batch, pages of the
longest context) int32 numbers: 0.13 GB at batch 64 and 131,072 tokens, 0.5 GB at batch 256. A depth of n steps has
n + 1 such backends: one for the verify, one for the draft's extend, and one for each of its drafts but the first; each
uses one of its four. Only one depth runs at a time, and a table is filled anew before each graph that reads it runs, so
all depths can use the same. The drafts of one depth are filled together and run after that; they can share one, too,
for what stands at a place of a request's row does not depend on the draft: a later draft's row is longer by one token,
and each reads as far as its own lengths tell.
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
"""Attributes of the backend, each a dict, and which of its entries are tables; strided indices are never written."""

_shared: dict[Hashable, Any] = {}


def share(runner: Any) -> None:
    """Before DecodeCudaGraphRunner.capture: use the tables of the first backends in the same places."""
    try:
        for backend in getattr(runner.attn_backend, "attn_backends", (runner.attn_backend,)):
            if type(backend).__name__ == "FlashAttentionBackend":
                _share(backend)
    except Exception:
        logger.exception("adaptive: a depth keeps page tables of its own")


def _share(backend: Any) -> None:
    for attribute, names in _TABLES.items():
        tables = getattr(backend, attribute, {})
        for name in names:
            own = tables.get(name)
            if own is not None:
                alike = (backend.is_draft_runner, attribute, name, own.shape, own.dtype, own.device)
                tables[name] = _shared.setdefault(alike, own)
