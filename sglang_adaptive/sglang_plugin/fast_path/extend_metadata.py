"""Builds the page table of the draft extend once a round instead of twice, on fa3.

The CUDA graph of a draft extend begins with a kernel that fills in lengths and page tables up to each request's length.
SGLang 0.5.23 also fills them in before every replay, in seventeen operations and for the longest context that the model
allows. On an H200 that takes 0.16 ms a round at batch 64 and 131,072 tokens, for any steps and any request lengths.
SGLang's workers for several draft layers leave it out already; this hook leaves it out of the EAGLE worker.
SGLANG_ADAPTIVE_EXTEND_METADATA=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard


class ExtendMetadata:
    """The metadata of fa3's draft extends."""

    def __init__(self) -> None:
        self.guard = Guard(
            "adaptive: the metadata of the draft's extend is built twice from now on", env.EXTEND_METADATA
        )
        self._replaying: Any = None
        """The backend whose graph is about to be replayed; None at other times."""

    @contextmanager
    def replaying(self, backend: Any) -> Iterator[None]:
        """Note that SGLang prepares and replays a graph of *backend* inside the ``with``."""
        self._replaying = backend
        try:
            yield
        finally:
            self._replaying = None

    def is_made(self, backend: Any, forward_batch: Any) -> bool:
        """Return whether the graph fills in all metadata itself; then it is bound to *backend*, and nothing is left."""
        return backend is self._replaying and bool(self.guard.attempt(_bound, backend, forward_batch))


def _bound(backend: Any, forward_batch: Any) -> bool:
    if not _is_in_graph(backend, forward_batch):
        return False
    backend.forward_metadata = backend.draft_extend_metadata[forward_batch.batch_size]
    backend.forward_metadata_spec_decode_expand = None
    return True


def _is_in_graph(backend: Any, forward_batch: Any) -> bool:
    """Whether the graph fills in all metadata: SGLang says so, and there are no tables of other kinds."""
    return bool(
        forward_batch.forward_mode.is_draft_extend_v2()
        and backend.draft_extend_metadata_captured_in_graph()
        and not backend.use_sliding_window_kv_pool
        and forward_batch.encoder_lens is None
    )
