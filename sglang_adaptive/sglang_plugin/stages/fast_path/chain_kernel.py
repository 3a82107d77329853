"""Runs the attention of verify passes on SGLang's Triton backend with a kernel that reads keys once per KV head.

SGLang 0.5.23 verifies with its prefill kernel. Each block takes the queries of one head, four rows where a request
verifies four tokens, and reads all keys of the request tile by tile, so all heads of a KV head read the same keys.
Here a block takes the queries of all heads of a KV head. The keys of a request are split over blocks, and a second
kernel combines their outputs: flash-decoding (https://pytorch.org/blog/flash-decoding) with several queries a request.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
import triton
import triton.language as tl

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

BLOCK = 64
"""Keys that a block reads at a time."""
MOST_ROWS = 128
"""Maximum rows of a block, queries times heads per KV head; its registers hold them and the keys."""
MOST_DIM = 256
"""Maximum head dimension, limited by registers and shared memory."""
MOST_PARTS = 32
"""Maximum number of parts that the keys of a request are split into."""
BLOCKS_A_PROCESSOR = 2
"""Parts are added until there are this many blocks per processor."""
LOG2_E = 1.4426950408889634
"""The kernels use exp2 instead of exp."""


@triton.jit(do_not_specialize=("width", "parts"))  # type: ignore[untyped-decorator, unused-ignore]
def _attend(  # type: ignore[no-untyped-def, unused-ignore]
    queries, new_keys, new_values, keys, values, out, ends, slots, outputs, sums, scale,
    query_token, query_head, new_token, new_head, key_token, key_head, out_token, out_head, width, parts,
    GROUP: tl.constexpr, ROWS: tl.constexpr, NEW: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    request, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIMS)
    token, of_head = row // GROUP, head * GROUP + row % GROUP
    used, inside = (token < width)[:, None], (dim < DIM)[None, :]
    first_token = request * width
    at = (first_token + token) * query_token + of_head * query_head
    query = tl.load(queries + at[:, None] + dim[None, :], mask=used & inside, other=0.0)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    output = tl.zeros((ROWS, DIMS), tl.float32)
    if part == 0:  # the chain's own keys: each token sees those up to itself
        new = tl.arange(0, NEW)
        there = (new < width)[:, None] & inside
        place = (first_token + new) * new_token + head * new_head
        key = tl.load(new_keys + place[:, None] + dim[None, :], mask=there, other=0.0)
        value = tl.load(new_values + place[:, None] + dim[None, :], mask=there, other=0.0)
        sees = (new[None, :] <= token[:, None]) & (new < width)[None, :]
        score = tl.where(sees, tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        best = tl.max(score, 1)
        weight = tl.exp2(score - best[:, None])
        total = tl.sum(weight, 1)
        output = tl.dot(weight.to(value.dtype), value)
    begin = tl.load(ends + request)
    length = tl.load(ends + request + 1) - begin
    each = tl.cdiv(tl.cdiv(length, parts), BLOCK) * BLOCK
    last = tl.minimum(part * each + each, length)
    for first in tl.range(part * each, last, BLOCK):
        number = first + tl.arange(0, BLOCK)
        there = number < last
        slot = tl.load(slots + begin + number, mask=there, other=0).to(tl.int64)
        place = slot * key_token + head * key_head
        read = there[:, None] & inside
        key = tl.load(keys + place[:, None] + dim[None, :], mask=read, other=0.0)
        score = tl.where(there[None, :], tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        better = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - better[:, None])
        shrink = tl.exp2(best - better)
        value = tl.load(values + place[:, None] + dim[None, :], mask=read, other=0.0)
        output = output * shrink[:, None] + tl.dot(weight.to(value.dtype), value)
        total = total * shrink + tl.sum(weight, 1)
        best = better
    if parts == 1:
        at = (first_token + token) * out_token + of_head * out_head
        written = (output / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] + dim[None, :], written, mask=used & inside)
    else:
        block = ((request * tl.num_programs(1) + head) * parts + part).to(tl.int64)
        place, some = block * ROWS + row, (part == 0) | (part * each < last)
        tl.store(sums + place, tl.where(some, best + tl.log2(total), float("-inf")))
        if some:
            tl.store(outputs + place[:, None] * DIM + dim[None, :], output / total[:, None], mask=inside)


@triton.jit(do_not_specialize=("width", "parts"))  # type: ignore[untyped-decorator, unused-ignore]
def _add_up(  # type: ignore[no-untyped-def, unused-ignore]
    outputs, sums, out, out_token, out_head, width, parts,
    GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    at, of_head = tl.program_id(0), tl.program_id(1)
    request, row = at // width, (at % width) * GROUP + of_head % GROUP
    heads = tl.num_programs(1) // GROUP
    part, dim = tl.arange(0, PARTS), tl.arange(0, DIMS)
    place = ((request * heads + of_head // GROUP) * parts + part).to(tl.int64) * ROWS + row
    sum_of = tl.load(sums + place, mask=part < parts, other=float("-inf"))
    read = (sum_of > float("-inf"))[:, None] & (dim < DIM)[None, :]
    output = tl.load(outputs + place[:, None] * DIM + dim[None, :], mask=read, other=0.0)
    weight = tl.exp2(sum_of - tl.max(sum_of, 0))
    found = tl.sum(output * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + at * out_token + of_head * out_head + dim, found.to(out.dtype.element_ty), mask=dim < DIM)


def attend(
    queries: Any, new_keys: Any, new_values: Any, out: Any, keys: Any, values: Any, ends: Any, slots: Any,
    scale: float, processors: int,
) -> None:  # fmt: skip
    """Write the attention output of b requests with chains of w tokens to *out*, on a GPU with *processors* SMs.

    - *queries* and *out*, [b w, heads, d]: the tokens of a request side by side; *scale* multiplies the dot products;
    - *new_keys* and *new_values*, [b w, KV heads, d]: those of the same tokens; each token sees those up to itself;
    - *keys* and *values*, [slots, KV heads, d]: the pool; *slots*, integers: those of all earlier tokens, request by
      request, and *ends*, [b + 1] integers: their prefix sums from 0.
    """
    requests, key_heads, dim = ends.shape[0] - 1, new_keys.shape[1], queries.shape[2]
    width, group = queries.shape[0] // requests, queries.shape[1] // key_heads
    rows, dims = rows_of(width, group), max(16, triton.next_power_of_2(dim))
    parts = parts_of(requests * key_heads, processors)
    blocks = requests * key_heads * parts if parts > 1 else 0
    outputs = torch.empty((blocks, rows, dim), dtype=torch.float32, device=queries.device)
    sums = torch.empty((blocks, rows), dtype=torch.float32, device=queries.device)
    _attend[(requests, key_heads, parts)](
        queries, new_keys, new_values, keys, values, out, ends, slots, outputs, sums, scale * LOG2_E,
        *queries.stride()[:2], *new_keys.stride()[:2], *keys.stride()[:2], *out.stride()[:2], width, parts,
        GROUP=group, ROWS=rows, NEW=max(16, triton.next_power_of_2(width)), DIM=dim, DIMS=dims, BLOCK=BLOCK,
        num_warps=2 if rows <= 32 else 4, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        _add_up[(queries.shape[0], queries.shape[1])](
            outputs, sums, out, *out.stride()[:2], width, parts,
            GROUP=group, ROWS=rows, DIM=dim, DIMS=dims, PARTS=MOST_PARTS, num_warps=4,
        )  # fmt: skip


def rows_of(width: int, group: int) -> int:
    """Return the number of rows of a block, which holds all queries of one request and KV head."""
    return max(16, int(triton.next_power_of_2(width * group)))


def parts_of(blocks: int, processors: int) -> int:
    """Return the number of parts to split keys into, where one part means *blocks* blocks."""
    parts = 1
    while parts < MOST_PARTS and blocks * parts < BLOCKS_A_PROCESSOR * processors:
        parts *= 2
    return parts


class ChainKernel(Stage):
    """Runs the verify passes of chains on SGLang's Triton backend."""

    def __init__(self) -> None:
        self.guard = Guard("chain-kernel")
        self._seen: WeakSet[Any] = WeakSet()
        self._processors = 0

    def triton_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Build the metadata of a pass; let *backend* use this kernel from now on if the pass verifies chains.

        It takes the place of a kernel that SGLang uses only on AMD GPUs.
        """
        if backend not in self._seen and forward_batch.forward_mode.is_target_verify():
            self._seen.add(backend)
            if self.guard.attempt(_verifies_chains, backend, forward_batch.spec_info):
                self._processors = backend.device_core_count
                backend.use_verify_shared_kv, backend.verify_shared_kv_fwd = True, self.attended
        rest(backend, forward_batch, *args, **kwargs)

    def attended(self, *arguments: Any, **options: Any) -> bool:
        """Run attention with the *arguments* of SGLang's verify kernels; False where its prefill kernel has to run."""
        return bool(self.guard.attempt(self._attended, *arguments, **options))

    def _attended(
        self, queries: Any, new_keys: Any, new_values: Any, out: Any, keys: Any, values: Any, query_ends: Any,
        ends: Any, slots: Any, mask: Any, causal: bool, mask_ends: Any, width: int, key_scale: Any, value_scale: Any,
        scale: float, *, logit_cap: float = 0.0, sliding_window_size: int = -1, sinks: Any = None,
        xai_temperature_len: int = -1, **_: Any,
    ) -> bool:  # fmt: skip
        requests, (tokens, heads, dim) = query_ends.shape[0] - 1, queries.shape
        plain = causal and sinks is None and max(logit_cap, sliding_window_size, xai_temperature_len) <= 0
        alike = tokens == requests * width and keys.shape[2] == values.shape[2] == dim
        same = keys.dtype == values.dtype == queries.dtype
        laid_out = keys.stride() == values.stride() and new_keys.stride() == new_values.stride()
        fits = dim <= MOST_DIM and rows_of(width, heads // keys.shape[1]) <= MOST_ROWS
        if not (plain and alike and same and laid_out and fits):
            return False
        attend(queries, new_keys, new_values, out, keys, values, ends[: requests + 1], slots, scale, self._processors)
        return True


def _verifies_chains(backend: Any, given: Any) -> bool:
    """Whether *backend* is SGLang's Triton backend and verifies only chains."""
    return (
        type(backend).__name__ == "TritonAttnBackend"
        and type(given).__name__ == "EagleVerifyInput"
        and backend.topk == given.topk == 1
        and not backend.is_draft_runner
        and not backend.use_mla
        and backend.dcp_size == 1
        and not (backend.use_verify_shared_kv or backend.use_verify_splitkv or backend.enable_deterministic)
    )
