"""Checks this package's fa3 metadata (lengths and page tables) against SGLang's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.fa3 import ExtendMetadata
from sglang_adaptive.sglang_plugin.stages.fast_path.length_kernel import LengthKernel
from tests import checks

DEVICE = checks.device()

POISON = -7
OUTPUTS = ("cache_seqlens_int32", "cu_seqlens_k", "cu_seqlens_q", "page_table")


def a_decode_is_told_what_sglang_tells() -> None:
    """Covers one request, more requests than a variant holds, and rows longer than a block's first pass."""
    from sglang.kernels.ops.attention.metadata import normal_decode_set_metadata

    every = [(*size, *of) for size in ((1, 2200), (3, 2200)) for of in ((1, 0), (1, 5), (16, 1))]
    for requests, width, page, more in (*every, (33, 40, 16, 1), (257, 8, 1, 5)):
        mine, theirs = (_given(requests, width, page) for _ in range(2))
        ours = Rounds(None, None).around(Stage.fa3_decode_metadata, _not_asked)
        ours(*_ordered(mine, width, more, page), None, skip_page_table=False)
        normal_decode_set_metadata(*_ordered(theirs, width, more, page))
        _equal(mine, theirs, (requests, width, page, more))


def an_extend_is_told_what_sglang_tells() -> None:
    """Also compares the prefix sums of the queries."""
    from sglang.kernels.ops.attention.metadata import draft_extend_set_metadata

    for requests, width, page in ((1, 2200, 1), (33, 40, 1), (257, 8, 16)):
        mine, theirs = (_given(requests, width, page) for _ in range(2))
        Rounds(None, None).around(Stage.fa3_extend_metadata, _not_asked)(**mine)
        draft_extend_set_metadata(**theirs)
        _equal(mine, theirs, (requests, width, page))


def other_tables_are_left_to_sglang() -> None:
    given, asked, now = _given(3, 40, 1), [], Rounds(None, None)

    def original(*_: Any, **options: Any) -> None:
        asked.append(options)

    for option in ("full_to_swa_index_mapping", "full_v2p", "zero_tail", "skip_page_table"):
        now.around(Stage.fa3_decode_metadata, original)(*_ordered(given, 40, 0, 1), **{option: True})
    strided = {**given, "seq_lens": given["seq_lens"].repeat_interleave(2)[::2]}
    now.around(Stage.fa3_decode_metadata, original)(*_ordered(strided, 40, 0, 1))
    now.around(Stage.fa3_extend_metadata, original)(**{**given, "full_to_swa_index_mapping": object()})
    assert len(asked) == 6 and not now.of(LengthKernel)[0].guard.closed, asked


def a_fault_leaves_lengths_to_sglang() -> None:
    """SGLang's code runs from then on; nothing is raised."""
    asked: list[Any] = []
    now, whole = Rounds(None, None), _given(3, 40, 1)
    for given in ({**whole, "req_pool_indices": None}, whole):
        now.around(Stage.fa3_extend_metadata, lambda **_: asked.append(1))(**given)
    assert now.of(LengthKernel)[0].guard.closed and asked == [1, 1]


def a_replayed_extend_is_told_once() -> None:
    """On SGLang's own backend, the graph alone writes everything that both writes would."""
    told = []
    for ours in (False, True):
        backend, batch = _replay()
        now = Rounds(None, None)

        def prepare(runner: Any, batch: Any, backend: Any = backend, now: Any = now) -> None:
            now.around(Stage.fa3_metadata, type(backend).init_forward_metadata_out_graph)(backend, batch)

        if ours:
            now.around(Stage.replay_extend, prepare)(_graphs(backend), batch)
            assert bool((backend.forward_metadata.page_table == POISON).all()), "it was filled in before the replay"
        else:
            prepare(None, batch)
        backend.init_forward_metadata_in_graph(batch)
        told.append({name: getattr(backend.forward_metadata, name) for name in OUTPUTS})
    _equal(*told, "replay")
    backend.forward_metadata.page_table.fill_(POISON)
    prepare(None, batch)
    assert not bool((backend.forward_metadata.page_table == POISON).all()), "the replay is over"


def elsewhere_an_extend_is_told_as_ever() -> None:
    backend, batch = _replay()
    asked: list[Any] = []
    now = Rounds(None, None)

    def original(*given: Any) -> None:
        asked.append(given)

    def prepare(runner: Any, told: Any) -> None:
        now.around(Stage.fa3_metadata, original)(backend, told)

    prepare(None, batch)
    now.around(Stage.replay_extend, prepare)(_graphs(object()), batch)
    now.around(Stage.replay_extend, prepare)(
        _graphs(backend), SimpleNamespace(**{**vars(batch), "encoder_lens": torch.ones(2)})
    )
    backend.use_sliding_window_kv_pool = True
    backend.token_to_kv_pool = SimpleNamespace(full_to_swa_index_mapping=torch.zeros(4))
    now.around(Stage.replay_extend, prepare)(_graphs(backend), batch)
    assert len(asked) == 4 and not now.of(ExtendMetadata)[0].guard.closed


def _graphs(backend: Any) -> Any:
    """Return an extend's graphs, captured with *backend*."""
    return SimpleNamespace(draft_extend_attn_backend=backend, model_runner=None)


def _ordered(given: dict[str, Any], width: int, more: int, page: int) -> tuple[Any, ...]:
    """Return the arguments of a decode."""
    names = ("cache_seqlens_int32", "cu_seqlens_k", "page_table", "req_to_token", "req_pool_indices")
    return (*(given[name] for name in names), width, given["seq_lens"], more, page)


def _given(requests: int, width: int, page: int) -> dict[str, Any]:
    """Return random requests, the same for the same arguments, and unwritten outputs."""
    draw = torch.Generator().manual_seed(requests)

    def drawn(least: int, most: int, *shape: int, kind: Any = torch.int32) -> Any:
        return torch.randint(least, most, shape, generator=draw, dtype=kind)

    given = {
        "req_to_token": drawn(0, 10**6, requests + 2, width * page),
        "req_pool_indices": torch.randperm(requests + 2, generator=draw)[:requests],
        "seq_lens": drawn(1, width * page - 5, requests, kind=torch.int64),
        "extend_seq_lens": drawn(1, 9, requests),
        "cache_seqlens_int32": torch.full((requests,), POISON, dtype=torch.int32),
        "cu_seqlens_k": torch.full((requests + 1,), POISON, dtype=torch.int32),
        "cu_seqlens_q": torch.full((requests + 1,), POISON, dtype=torch.int32),
        "page_table": torch.full((requests, width), POISON, dtype=torch.int32),
    }
    return {**{name: tensor.to(DEVICE) for name, tensor in given.items()}, "page_size": page}


def _replay() -> tuple[Any, Any]:
    """Return fa3's backend with its CUDA graph buffers, and a batch that its extend's graph would run."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tests.worker_checks import _fa3

    requests, width = 2, 3
    backend = _fa3(is_draft=1, step=0, device=DEVICE)
    draw = torch.Generator().manual_seed(1)
    backend.req_to_token = torch.randint(0, 999, (9, 32), generator=draw, dtype=torch.int32).to(DEVICE)
    backend.kv_index_translator = SimpleNamespace(is_translating=False, reads_are_translated=False)
    backend.fa_impl_ver, backend.needs_cpu_seq_lens = 3, False
    table = backend.draft_extend_metadata
    for name in ("page_table", "cache_seqlens", "cu_seqlens_q", "cu_seqlens_k"):
        table[name].fill_(POISON)
    mode = ForwardMode.DRAFT_EXTEND_V2
    spec = SimpleNamespace(num_tokens_per_req=width, extend_seq_lens_tensor=None, extend_seq_lens_cpu=[width, width])
    backend._bind_metadata_buffers(requests, requests * width, None, mode, spec, DEVICE)
    batch = SimpleNamespace(
        forward_mode=mode, batch_size=requests, seq_lens=torch.tensor([7, 21], device=DEVICE), encoder_lens=None,
        req_pool_indices=torch.tensor([4, 1], device=DEVICE), spec_info=spec, seq_lens_cpu=None, kv_loc_plan=None,
        extend_seq_lens=torch.full((requests,), width, device=DEVICE), out_cache_loc=None,
    )  # fmt: skip
    return backend, batch


def _equal(mine: dict[str, Any], theirs: dict[str, Any], case: Any) -> None:
    """Compare what fa3 reads: each table row only up to the request's length."""
    for name in OUTPUTS[:3]:
        assert torch.equal(mine[name], theirs[name]), (case, name, mine[name], theirs[name])
    for row, length in enumerate(mine["cache_seqlens_int32"].tolist()):
        pages = -(-length // mine.get("page_size", 1))
        one, other = (told["page_table"][row][:pages] for told in (mine, theirs))
        assert torch.equal(one, other), (case, row)


def _not_asked(*_: Any, **__: Any) -> None:
    raise AssertionError("it was left to SGLang")
