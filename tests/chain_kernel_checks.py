"""Checks the kernel for chains on SGLang's Triton backend against the attention formula and SGLang's prefill kernel."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stages.fast_path.chain_kernel import ChainKernel, attend, parts_of, rows_of
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel
from tests.decode_kernel_checks import HEADS, a_batch, triton_backend, written

SLOTS, WIDTH = 4096, 4


@dataclass(frozen=True)
class Shape:
    """A verify pass."""

    lengths: tuple[int, ...]
    """Tokens before the chain, by request."""
    width: int
    heads: int
    key_heads: int
    dim: int
    processors: int = 1
    """A higher number gives more parts."""


SHAPES = (
    Shape((300,), 4, 8, 2, 64, 16),
    Shape((1, 33, 500), 4, 8, 2, 64, 4),
    Shape((5, 90), 1, 4, 4, 128),
    Shape((70, 3), 8, 6, 2, 64, 3),
    Shape((129, 64, 2), 5, 9, 3, 80, 2),
    Shape((200,), 16, 8, 1, 64, 2),
    Shape((0, 31), 2, 8, 2, 32, 8),
)


def each_token_sees_what_came_before_it() -> None:
    for shape in SHAPES:
        found, wanted = attended(shape, torch.float32, "cpu")
        torch.testing.assert_close(found, wanted, rtol=0, atol=3e-6, msg=lambda text, of=shape: f"{of}: {text}")


def keys_are_split_until_every_processor_has_work() -> None:
    assert [parts_of(blocks, 132) for blocks in (1, 8, 64, 128, 512, 528)] == [32, 32, 8, 4, 1, 1]
    assert [rows_of(*shape) for shape in ((1, 4), (4, 4), (5, 4), (8, 8))] == [16, 16, 32, 64]


def a_verify_pass_writes_what_sglang_writes() -> None:
    for captured in (False, True):
        now, kernel, backend = Rounds(None, None), ChainKernel(), _backend()
        now.use([kernel, DecodeKernel()])
        backend.extend_attention_fwd = None
        mine, theirs = written(backend, _batch(), captured, now), written(_backend(), _batch(), captured, None)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=3e-6)
        assert not kernel.guard.closed


def other_passes_are_left_to_sglang() -> None:
    """Trees, drafts, other algorithms, MLA, AMD's own kernels, and passes for which the backend has its own kernel."""
    of_backends = ("is_draft_runner", "use_mla", "enable_deterministic", "use_verify_splitkv")
    for name, value in (*((name, True) for name in of_backends), ("topk", 2), ("dcp_size", 2)):
        backend = _backend()
        setattr(backend, name, value)
        assert not _serves(backend, _batch()), name
    tree, ngram, drafting, subclass = _batch(), _batch(), _batch(), _backend()
    tree.spec_info.topk, ngram.spec_info = 4, SimpleNamespace(draft_token_num=WIDTH)
    drafting.forward_mode = type(drafting.forward_mode).DECODE
    subclass.__class__ = type("OfAnotherKernel", (type(subclass),), {})
    assert not any(_serves(_backend(), batch) for batch in (tree, ngram, drafting)) and not _serves(subclass, _batch())
    assert _serves(_backend(), _batch())


def other_layers_are_left_to_sglang() -> None:
    usual = _arguments()
    assert _takes(usual) and not usual[3].isnan().any()
    for options in ({"logit_cap": 30.0}, {"sliding_window_size": 64}, {"sinks": torch.ones(8)}):
        assert not _takes(_arguments(), **options)
    assert not _takes(_arguments(), xai_temperature_len=100)
    for place, value in ((4, usual[4].half()), (10, False), (12, WIDTH + 1), (5, usual[5][..., :32])):
        changed = _arguments()
        changed[place] = value
        assert not _takes(changed), place


def a_fault_leaves_passes_to_sglang() -> None:
    """SGLang's kernel runs from then on; nothing is raised."""
    kernel, broken, backend = ChainKernel(), _arguments(), _backend()
    broken[7] = None
    assert not kernel.attended(*broken) and kernel.guard.closed and not kernel.attended(*_arguments())
    kernel.triton_metadata(lambda *_: None, backend, _batch())
    assert not backend.use_verify_shared_kv


def attended(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Return what the kernel writes for *shape*, and the expected result, in float32."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(dtype).to(device)

    requests, tokens, group = len(shape.lengths), len(shape.lengths) * shape.width, shape.heads // shape.key_heads
    queries, new = drawn(tokens, shape.heads, shape.dim), (drawn(tokens, shape.key_heads, shape.dim) for _ in range(2))
    new_keys, new_values = new
    keys, values = (drawn(SLOTS, shape.key_heads, shape.dim) for _ in range(2))
    slots = torch.randperm(SLOTS, generator=generator)[: sum(shape.lengths)].to(device)
    ends = torch.tensor([0, *shape.lengths]).cumsum(0).int().to(device)
    found, scale = torch.full_like(queries, float("nan")), shape.dim**-0.5
    attend(queries, new_keys, new_values, found, keys, values, ends, slots, scale, shape.processors)

    wanted = []
    for request in range(requests):
        mine = slice(request * shape.width, (request + 1) * shape.width)
        seen = slots[ends[request] : ends[request + 1]]
        both = [torch.cat([pool[seen], chain[mine]]) for pool, chain in ((keys, new_keys), (values, new_values))]
        key, value = (side.float().repeat_interleave(group, 1) for side in both)
        scores = torch.einsum("qhd,khd->hqk", queries[mine].float(), key) * scale
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=device).triu(len(seen) + 1)
        wanted.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(later, float("-inf")).softmax(-1), value))
    return found.float(), torch.cat(wanted)


def _backend() -> Any:
    backend = triton_backend(WIDTH)
    backend.topk = 1
    return backend


def _batch() -> Any:
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    batch, given = a_batch(WIDTH), object.__new__(EagleVerifyInput)
    given.__dict__.update(vars(batch.spec_info), topk=1)
    batch.spec_info = given
    return batch


def _serves(backend: Any, batch: Any) -> bool:
    kernel = ChainKernel()
    kernel.triton_metadata(lambda *_: None, backend, batch)
    assert not kernel.guard.closed
    return bool(backend.use_verify_shared_kv)


def _takes(arguments: list[Any], **options: Any) -> bool:
    kernel = ChainKernel()
    taken = kernel.attended(*arguments, **options)
    assert not kernel.guard.closed
    return taken


def _arguments() -> list[Any]:
    """Return the arguments that SGLang passes to a verify kernel for two requests."""
    new, pool = (torch.ones(2 * WIDTH, 2, 64) for _ in range(2)), (torch.ones(SLOTS, 2, 64) for _ in range(2))
    queries, ends = torch.ones(2 * WIDTH, HEADS, 64), torch.tensor([0, 5, 9])
    asked = torch.arange(0, 3 * WIDTH, WIDTH)
    out = torch.full_like(queries, float("nan"))
    return [queries, *new, out, *pool, asked, ends, torch.arange(9), None, True, None, WIDTH, 1.0, 1.0, 0.125]
