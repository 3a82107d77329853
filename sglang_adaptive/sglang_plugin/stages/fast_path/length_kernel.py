"""Fills in fa3's lengths and page tables with one kernel whose work scales with the request lengths.

SGLang 0.5.23 does it before each pass and inside the graph of the draft extend. Its kernel adds the lengths in a single
thread and launches a block for every 256 tokens of the model's longest context; this one adds in a tree, and its blocks
cover each request's own length. SGLang still fills in page tables of sliding windows and of virtual memory.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched

BLOCK, PARTS = 512, 4
"""Pages that a block copies at a time, and blocks per request."""

LEAST_REQUESTS = 256
"""Batches up to this size share a variant of the prefix sum, which is compiled per power of two of requests."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def fill_pages(  # type: ignore[no-untyped-def, unused-ignore]
    slots, length, page_table, request, part, page_stride, most_pages, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Fill in one of PARTS parts of a request's row of *page_table*, from its *slots*; called from kernels."""
    pages = tl.minimum(tl.cdiv(length, PAGE), most_pages)
    for first in range(part * BLOCK, pages, PARTS * BLOCK):
        page = first + tl.arange(0, BLOCK)
        live = page < pages
        slot = tl.load(slots + page * PAGE, mask=live, other=0, cache_modifier=".cg")
        tl.store(page_table + request.to(tl.int64) * page_stride + page, slot // PAGE, mask=live)


@launched
def _fill(  # type: ignore[no-untyped-def, unused-ignore]
    seq_lens, query_lens, request_table, request_stride, rows, lengths, key_ends, query_ends, page_table, page_stride,
    requests, most_pages,
    MORE: tl.constexpr, PAGE: tl.constexpr, REQUESTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    if (request == 0) & (part == 0):
        each = tl.arange(0, REQUESTS)
        inside = each < requests
        length = tl.where(inside, tl.load(seq_lens + each, mask=inside, other=0).to(tl.int32) + MORE, 0)
        tl.store(lengths + each, length, mask=inside)
        tl.store(key_ends, 0)
        tl.store(key_ends + 1 + each, tl.cumsum(length, 0), mask=inside)
        if query_lens is not None:
            queries = tl.load(query_lens + each, mask=inside, other=0).to(tl.int32)
            tl.store(query_ends, 0)
            tl.store(query_ends + 1 + each, tl.cumsum(queries, 0), mask=inside)
    slots = request_table + tl.load(rows + request).to(tl.int64) * request_stride
    tokens = tl.load(seq_lens + request).to(tl.int32) + MORE
    fill_pages(slots, tokens, page_table, request, part, page_stride, most_pages, PAGE, BLOCK, PARTS)


def room(requests: int) -> int:
    """Return the number of requests that a prefix sum over *requests* is compiled for."""
    return LEAST_REQUESTS if requests <= LEAST_REQUESTS else int(triton.next_power_of_2(requests))


def fill(
    lengths: Any, key_ends: Any, page_table: Any, request_table: Any, rows: Any, seq_lens: Any, more: int, page: int,
    most_pages: int, query_lens: Any = None, query_ends: Any = None,
) -> bool:  # fmt: skip
    """Fill in what fa3 reads of a batch of b requests, on the device; nothing waits for it.

    Returns False, and writes nothing, if a tensor is not dense. Otherwise it writes

    - *lengths*, [b] int32: *seq_lens* + *more*;
    - *key_ends*, [b + 1] int32: their prefix sums, from 0;
    - the used part of each row of *page_table*, [>= b, pages] int32: the slot of every *page*-th token of the request,
      from its row of *request_table*, divided by *page*;
    - *query_ends*, [b + 1] int32, if given: the prefix sums of *query_lens*, [b], from 0.
    """
    dense = [each for each in (lengths, key_ends, rows, seq_lens, query_lens, query_ends) if each is not None]
    strides = [*(tensor.stride(0) for tensor in dense), request_table.stride(1), page_table.stride(1)]
    if any(stride != 1 for stride in strides):
        return False
    requests = lengths.shape[0]
    most = room(requests)
    kind = (more, page, most, seq_lens.dtype, rows.dtype, request_table.dtype, getattr(query_lens, "dtype", None))
    _fill(
        kind, (requests, PARTS), seq_lens, query_lens, request_table, request_table.stride(0), rows, lengths, key_ends,
        query_ends, page_table, page_table.stride(0), requests, most_pages, more, page, most, BLOCK, PARTS,
    )  # fmt: skip
    return True


class LengthKernel(Stage):
    """Fills in fa3's metadata instead of SGLang where it can."""

    def __init__(self) -> None:
        self.guard = Guard("length-kernel")

    def fa3_decode_metadata(
        self, rest: Rest, cache_seqlens_int32: Any, cu_seqlens_k: Any, page_table: Any, req_to_token: Any,
        req_pool_indices: Any, max_seq_pages: int, seq_lens: Any, seq_len_delta: int, page_size: int, *more: Any,
        **options: Any,
    ) -> None:  # fmt: skip
        """Fill in a decode, draft or verify pass; all other arguments have to be None or False."""
        asked = any(option is not None and option is not False for option in (*more, *options.values()))
        if asked or not self.guard.attempt(
            fill, cache_seqlens_int32, cu_seqlens_k, page_table, req_to_token, req_pool_indices, seq_lens,
            seq_len_delta, page_size, max_seq_pages,
        ):  # fmt: skip
            rest(
                cache_seqlens_int32, cu_seqlens_k, page_table, req_to_token, req_pool_indices, max_seq_pages, seq_lens,
                seq_len_delta, page_size, *more, **options,
            )  # fmt: skip

    def fa3_extend_metadata(self, rest: Rest, **given: Any) -> None:
        if given.get("full_to_swa_index_mapping") is not None or not self.guard.attempt(
            fill, given["cache_seqlens_int32"], given["cu_seqlens_k"], given["page_table"], given["req_to_token"],
            given["req_pool_indices"], given["seq_lens"], 0, given["page_size"], given["page_table"].shape[1],
            given["extend_seq_lens"], given["cu_seqlens_q"],
        ):  # fmt: skip
            rest(**given)
