"""Checks small replacements inside SGLang's worker against SGLang's own code, in a process of the CPU engine."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from sglang.srt.model_executor.runner.shape_key import ShapeKey

from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.captures import Captures
from sglang_adaptive.sglang_plugin.stages.fast_path import launches
from sglang_adaptive.sglang_plugin.stages.fast_path.fa3 import QueriesInPlace, VerifySchedule
from sglang_adaptive.sglang_plugin.stages.zero_steps.inputs import ZeroStepInputs

FIELDS = (
    *("draft_token", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling"),
    *("retrieve_cum_len", "spec_steps", "topk", "draft_token_num", "capture_hidden_mode", "seq_lens_sum"),
)
LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


def every_size_of_a_zero_step_round_is_what_sglang_makes() -> None:
    """All fields match, and only a batch larger than any before builds new inputs."""
    asked: list[int] = []
    worker, original, inputs = _worker(), _counted(asked), ZeroStepInputs()
    for requests in (4, 4, 1, 3, 9, 9, 2, 64):
        batch = _batch(requests)
        mine = inputs.zero_step_input(original, worker, batch)
        theirs = type(worker)._build_trivial_verify_input(worker, batch)
        assert [name for name in FIELDS if not _same(getattr(mine, name), getattr(theirs, name))] == []
        assert mine.custom_mask is _mask(worker).buffer
    assert asked == [4, 9, 64], asked


def sglang_makes_it_where_its_mask_or_its_form_is_needed() -> None:
    for worker, batch in (
        *((_worker(is_read=True), _batch(2)), (_worker(watermark=object()), _batch(2))),
        *((_worker(), _batch(2, idle=True)), (_worker(), _batch(65))),
    ):
        asked: list[Any] = []
        inputs = ZeroStepInputs()
        inputs._links, inputs._rows = dict.fromkeys(LINKS, torch.zeros(99)), 99
        inputs.zero_step_input(lambda worker, batch, asked=asked: asked.append(batch), worker, batch)
        assert asked == [batch] and not inputs.guard.closed


def a_fault_leaves_the_inputs_to_sglang() -> None:
    """SGLang makes the inputs in that round and in every later one; nothing is raised."""
    asked: list[int] = []
    worker, original, inputs = _worker(), _counted(asked), ZeroStepInputs()
    inputs.zero_step_input(original, worker, _batch(3))
    runner = worker.target_worker.model_runner
    del runner.watermark_state
    inputs.zero_step_input(original, worker, _batch(2))
    runner.watermark_state = None
    inputs.zero_step_input(original, worker, _batch(2))
    assert asked == [3, 2, 2] and inputs.guard.closed, asked


def only_the_first_graph_of_a_kind_has_runs_before_it() -> None:
    """With several ranks, each further graph has one, as with torch.compile."""
    for kind in ("full", "breakable"):
        for how, expected, kept in (
            ({"before": False}, "wait run reset wait run reset capture run", 3),
            ({}, "wait reset wait reset capture run", 1),
            ({"ranks": 2}, "wait run reset wait reset capture run", 2),
            ({"compiles": True}, "wait run reset wait reset capture run", 2),
            ({"off": True}, "wait run reset wait run reset capture run", 3),
        ):
            events, output = _captured(kind, **how)
            assert (events, output) == (expected.split(), kept), (kind, how, events, output)


def a_capture_that_fails_without_a_run_is_repeated_with_one() -> None:
    """The pass fails in the middle, and leaves the batch's slots of one step in place of those of all."""
    captures, runs = Captures(), list[str]()
    forward_batch = SimpleNamespace(slots=3, spec_info=SimpleNamespace(hidden="all"))

    def forward() -> None:
        assert (forward_batch.slots, forward_batch.spec_info.hidden) == (3, "all")
        runs.append("run" if captures.without_run.closed else "failed")
        forward_batch.slots, forward_batch.spec_info.hidden = 1, "one"
        if runs[-1] == "failed":
            raise RuntimeError("torch.compile cannot JIT compile during CUDA graph capture")
        forward_batch.slots, forward_batch.spec_info.hidden = 3, "all"

    for size in (4, 2):
        captures.capture_one(_thrice, _with_graphs(ShapeKey(8)), ShapeKey(size), forward)
    assert runs == ["failed", *["run"] * 6], runs


def the_first_graph_of_a_kind_and_of_size_one_have_runs_before_them() -> None:
    """For either, torch.compile may compile a function, which it refuses within a capture."""
    captures, compiled, runs = Captures(), set[tuple[bool, str | None]](), list[int]()
    backend = _with_graphs()

    def captured(key: ShapeKey) -> int:
        left = 3

        def forward() -> None:
            nonlocal left
            left -= 1
            runs.append(key.size)
            kind = (key.size == 1, key.variant_label)
            if kind not in compiled and not left:
                raise RuntimeError("torch.compile cannot JIT compile during CUDA graph capture")
            compiled.add(kind)

        before = len(runs)
        captures.capture_one(_thrice, backend, key, forward)
        backend._graphs[key] = object()
        return len(runs) - before

    sizes = [captured(ShapeKey(size, variant_label=label)) for size in (8, 4, 2, 1) for label in (None, "greedy")]
    assert sizes == [3, 3, 1, 1, 1, 1, 3, 3] and not captures.without_run.closed, sizes


def _thrice(backend: Any, key: ShapeKey, forward: Callable[[], Any]) -> None:
    """Call *forward* as SGLang does: two runs and the capture."""
    forward(), forward(), forward()


def _with_graphs(*keys: ShapeKey) -> Any:
    runner, group = SimpleNamespace(), SimpleNamespace(world_size=1)
    return SimpleNamespace(_graphs=dict.fromkeys(keys, object()), _tp_group=group, _cuda_graph_runner=runner)


def depths_of_fa3_share_their_page_tables() -> None:
    """Backends with the same role share them, with SGLang's own backend; so do the drafts of a depth."""
    first, other, second_draft = (_fa3(is_draft=draft, step=step) for draft, step in ((0, 0), (0, 0), (1, 1)))
    drafts = SimpleNamespace(attn_backends=[_fa3(is_draft=1, step=0), second_draft])
    larger = _fa3(is_draft=0, step=0, largest=8)
    now: Any = Rounds(None, None)
    for backend in (first, other, drafts, larger, SimpleNamespace()):
        now.around(Stage.capture, _nothing)(SimpleNamespace(attn_backend=backend))
    for name in ("decode_cuda_graph_metadata", "target_verify_metadata", "draft_extend_metadata"):
        one, same, draft, wide = (getattr(backend, name) for backend in (first, other, second_draft, larger))
        assert one["page_table"] is same["page_table"] and one["cache_seqlens"] is not same["cache_seqlens"]
        assert one["page_table"] is not draft["page_table"] and one["page_table"] is not wide["page_table"]
    tables = [first.decode_cuda_graph_metadata[name] for name in ("page_table", "page_table_draft_decode")]
    assert tables[0] is not tables[1] and tables[1] is other.decode_cuda_graph_metadata["page_table_draft_decode"]
    two = [backend.decode_cuda_graph_metadata for backend in drafts.attn_backends]
    for name in ("page_table", "page_table_draft_decode", "strided_indices"):
        assert two[0][name] is two[1][name]
    assert two[0]["cache_seqlens"] is not two[1]["cache_seqlens"]
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    layers = [SimpleNamespace(attn_backend=_fa3(is_draft=1, step=0)) for _ in range(2)]
    now.around(Stage.capture, _nothing)(SimpleNamespace(runners=[*layers, None]))
    assert len({id(layer.attn_backend.draft_extend_metadata["page_table"]) for layer in layers}) == 1
    # Every replay fills the same memory that a graph was captured with.
    bound = other._bind_metadata_buffers(2, 6, None, ForwardMode.TARGET_VERIFY, None, "cpu")[0].page_table
    assert bound.data_ptr() == first.target_verify_metadata["page_table"].data_ptr()


def verify_graphs_share_the_rows_of_their_hidden_states() -> None:
    """Graphs of all sizes and widths share them, with the same result as SGLang's join; no other graph does."""
    parts, captures = [torch.randn(12, 4) for _ in range(3)], Captures()
    outputs = {rows: _joined_in_a_capture(captures, [part[:rows] for part in parts]) for rows in (6, 12, 3)}
    for rows, (expected, kept) in outputs.items():
        assert kept.shape == (rows, 12) and expected.data_ptr() != kept.data_ptr()
    first, second, third = (kept.data_ptr() for _, kept in outputs.values())
    assert first != second == third  # the buffer grew once, to the widest
    assert torch.equal(outputs[3][0], outputs[3][1])
    for others in ({"mode": "DRAFT_EXTEND_V2"}, {"compiles": True}):
        expected, kept = _joined_in_a_capture(captures, parts, **others)
        assert kept.data_ptr() not in (first, second) and torch.equal(expected, kept)
    expected, kept = _joined_in_a_capture(captures, parts[:1])
    assert kept.data_ptr() == parts[0].data_ptr()


def hidden_states_that_cannot_be_joined_in_place_are_sglangs() -> None:
    """Parts of two types; and everything after a fault, here parts that need gradients."""
    mixed, captures = [torch.randn(2, 4), torch.randn(2, 4, dtype=torch.float64)], Captures()
    expected, kept = _joined_in_a_capture(captures, mixed)
    assert kept.dtype == torch.float64 and torch.equal(expected, kept) and not captures.shared_rows.closed
    expected, kept = _joined_in_a_capture(captures, [torch.randn(2, 4, requires_grad=True) for _ in range(2)])
    assert torch.equal(expected, kept) and captures.shared_rows.closed


def what_a_capture_finds_is_frozen_until_start_up_is_over() -> None:
    """If the option to collect garbage while capturing is set, SGLang's code does everything."""
    original: list[bool] = []
    counts = []
    try:
        for _ in range(2):
            with Captures().freeze_gc(original.append, False):
                counts.append(gc.get_freeze_count())
    finally:
        gc.unfreeze()
    assert 0 < counts[0] <= counts[1] and gc.get_freeze_count() == 0 and original == []
    Captures().freeze_gc(original.append, True)
    assert original == [True]


def a_verify_pass_has_one_schedule() -> None:
    """The first layer makes it, for the lengths of its pass, and only layers with full attention use it."""
    from sglang.srt.layers.radix_attention import AttentionType

    made: list[int] = []
    backend = _scheduling(made)
    for length in (5, 6):
        backend.forward_metadata.cache_seqlens_int32 = torch.full((2,), length)
        assert [_attended(backend, layer) for layer in (0, 1, 2)] == [len(made)] * 3
    assert made == [5, 6], made
    assert _attended(backend, 3, sliding_window_size=128) is None
    assert _attended(backend, 3, v_head_dim=4) is None
    assert _attended(backend, 3, is_cross_attention=True) is None
    assert _attended(backend, 3, attn_type=AttentionType.ENCODER_ONLY) is None  # in DFLASH's draft
    assert _attended(backend, 3, mode="DRAFT_EXTEND_V2") is None
    assert _attended(_scheduling(made, topk=4), 0) is None and made == [5, 6]


def a_schedule_that_cannot_be_made_leaves_each_layer_its_own() -> None:
    """SGLang's code runs from then on; nothing is raised."""
    backend = _scheduling([])
    del backend.forward_metadata
    assert _attended(backend, 0) is None and backend.round.of(VerifySchedule)[0].guard.closed


def the_queries_of_a_round_reach_the_kernel_where_they_lie() -> None:
    """In every pass of a round, through SGLang's own backend; other passes get a copy of the same numbers."""
    rows = torch.arange(3 * 24, dtype=torch.bfloat16).view(3, 24)
    q = rows[:, :16]
    for mode in ("TARGET_VERIFY", "DRAFT_EXTEND_V2", "DECODE"):
        reached = _query_at_kernel(q, mode)
        assert reached.data_ptr() == rows.data_ptr() and reached.stride() == (24, 8, 1), (mode, reached.stride())
        assert type(reached) is torch.Tensor and torch.equal(reached, q.reshape(3, 2, 8))
    copied = [
        _query_at_kernel(q, "EXTEND"),
        _query_at_kernel(q, "DECODE", fa_impl_ver=4),
        _query_at_kernel(q, "TARGET_VERIFY", attn_cp_size=2),
        _query_at_kernel(rows[:, 1:17], "TARGET_VERIFY"),  # not aligned for the kernel
    ]
    with patch("torch.compiler.is_compiling", lambda: True):
        copied.append(_query_at_kernel(q, "TARGET_VERIFY"))
    for reached, given in zip(copied, (q, q, q, rows[:, 1:17], q), strict=True):
        assert reached.is_contiguous() and torch.equal(reached, given.reshape(3, 2, 8))


def queries_that_cannot_be_looked_at_are_copied() -> None:
    """The queries are copied from then on; nothing is raised."""
    q, now, asked = torch.zeros(3, 24, dtype=torch.bfloat16)[:, :16], Rounds(None, None), list[Any]()
    assert not _query_at_kernel(q, "DECODE", now).is_contiguous()
    (queries,) = now.of(QueriesInPlace)
    queries.fa3_attention(lambda _, given, *more: asked.append(given), object(), q, None, None, None, object())
    assert asked[0] is q and queries.guard.closed and _query_at_kernel(q, "DECODE", now).is_contiguous()


def the_hooks_for_a_cuda_device_fit_and_land() -> None:
    """Uses SGLang's own modules; fa3's is imported here without its kernels."""
    _import_fa3()
    assert hooks.problems(on_cuda=True) == []
    hooks.install_now(hooks.hooks(Process.SCHEDULER_CUDA))


def kernels_that_write_slots_compile_in_one_variant() -> None:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    launches.ignore_alignment()
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    target = GPUTarget("cuda", 90, 32)
    backend, context = make_backend(target), ir.context()
    options = backend.parse_options({})
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    for kernel, pointers, constants in (
        (write_req_to_token_pool_triton, ["*i32", "*i64", "*u64", "*i64", "*i64", "*i64", "*i64"], [131_076]),
        (assign_req_to_token_pool, ["*i64", "*i32", "*i32", "*i32", "*i64"], [131_076, 64]),
    ):
        kinds = [*pointers, *("constexpr" for _ in constants)]
        signature = dict(zip((parameter.name for parameter in kernel.params), kinds, strict=True))
        constexprs = {(len(pointers) + index,): constant for index, constant in enumerate(constants)}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs={})
        assert "tt.func" in str(source.make_ir(target, options, functions, backend.get_module_map(), context))


def _nothing(*_: Any) -> None:
    """Stand in for SGLang's function."""


def _worker(is_read: bool = False, watermark: Any = None) -> Any:
    from sglang.srt.layers.attention.verify_mask import maybe_create_verify_mask
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    mask = maybe_create_verify_mask(
        is_draft_runner=False, skip_prefill=False, max_bs=64, max_context_len=32,
        num_draft_tokens=1, device="cpu", is_read=is_read,
    )  # fmt: skip
    made = object.__new__(EAGLEWorkerV2)
    backend = SimpleNamespace(verify_mask=mask, max_context_len=32)
    made._target_worker = SimpleNamespace(model_runner=SimpleNamespace(attn_backend=backend, watermark_state=watermark))
    made.topk, made.device = 1, "cpu"
    return made


def _attended(backend: Any, layer: int, mode: str = "TARGET_VERIFY", **unlike_a_plain_layer: Any) -> Any:
    """Return the schedule that reaches the kernel in a layer's call."""
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    def kernel(**arguments: Any) -> Any:
        return arguments.get("scheduler_metadata")

    def forward(*_: Any) -> Any:
        return backend.round.around(Stage.fa3_kernel, kernel)(causal=True)

    plain = {"layer_id": layer, "sliding_window_size": -1, "is_cross_attention": False}
    plain |= {"attn_type": AttentionType.DECODER, "qk_head_dim": 8, "v_head_dim": 8}
    batch = SimpleNamespace(forward_mode=ForwardMode[mode])
    alike = SimpleNamespace(**{**plain, **unlike_a_plain_layer})
    return backend.round.around(Stage.fa3_attention, forward)(backend, None, None, None, alike, batch)


class _Backend:
    """A backend with these attributes and the round whose passes it runs."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.round: Any = Rounds(None, None)


def _scheduling(made: list[int], topk: int = 1) -> Any:
    """Return a backend that makes schedules; *made* records the length of each one, and a schedule is its number."""

    def schedule(cache_seqlens: Any, **_: Any) -> int:
        made.append(int(cache_seqlens[0]))
        return len(made)

    lengths = torch.full((2,), 5)
    metadata = {"cache_seqlens_int32": lengths, "cu_seqlens_q": None, "max_seq_len_q": 4}
    return _Backend(
        fa_impl_ver=4, _get_scheduler_metadata=schedule, use_mla=False, _disable_scheduler_metadata_precompute=False,
        topk=topk, local_attn_builder=None, attn_cp_size=1, _kv_shard_pool=None, is_encoder_decoder=False, page_size=1,
        num_attention_heads=4, num_kv_heads=2, head_dim=8, kv_cache_dtype=torch.bfloat16, has_softcap=False,
        num_splits=0, forward_metadata=SimpleNamespace(**metadata, page_table=torch.zeros(2, 32)),
    )  # fmt: skip


def _import_fa3() -> None:
    import sgl_kernel

    sgl_kernel.merge_state_v2 = None  # fa3's module imports it by name; nothing here computes attention


def _fa3(is_draft: int, step: int, largest: int = 4, device: str = "cpu") -> Any:
    """Return fa3's backend with the CUDA graph buffers that it allocates itself."""
    _import_fa3()
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend

    made = object.__new__(FlashAttentionBackend)
    absent = ("local_attn_builder", "_get_scheduler_metadata", "_verify_mask", "_kv_shard_pool")
    no = ("use_mla", "use_sliding_window_kv_pool", "has_swa", "is_encoder_decoder", "is_prefill_aware_swa")
    numbers = {"max_context_len": 32, "page_size": 1, "topk": 1, "speculative_num_draft_tokens": 3}
    values = {**dict.fromkeys(absent), **dict.fromkeys(no, False), **numbers, "skip_prefill": False, "device": device}
    made.__dict__.update(values, is_draft_runner=bool(is_draft), speculative_step_id=step)
    made.init_cuda_graph_state(largest, 3 * largest)
    return made


def _query_at_kernel(q: Any, mode: str, now: Any = None, **unlike: Any) -> Any:
    """Return the query that reaches fa3's kernel when a layer of two heads of 8 gets *q*."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    backend = _fa3(False, 0)
    no = ("fa_skip_kv_cache", "kv_cache_is_mxfp8", "_decode_uses_static_max_seqlen_k")
    backend.__dict__.update(
        {**dict.fromkeys(no, False), "fa_impl_ver": 3, "attn_cp_size": 1, "num_splits": 0, "decode_num_splits": 0,
         "kv_cache_dtype_str": "auto", "full_cg_prefill_metadata": None, **unlike}
    )  # fmt: skip
    unread = (
        *("local_attn_metadata", "image_token_ranges", "scheduler_metadata", "swa_spec_metadata", "pa_swa_page_table"),
        *("page_table", "cu_seqlens_q", "cu_seqlens_k", "cache_seqlens_int32", "max_seq_len_q", "max_seq_len_k"),
    )
    backend.forward_metadata = SimpleNamespace(**dict.fromkeys(unread))
    pool = torch.zeros(4, 1, 8)
    backend.token_to_kv_pool = SimpleNamespace(get_kv_buffer=lambda _: (pool, pool))
    layer = SimpleNamespace(
        layer_id=0, sliding_window_size=-1, is_cross_attention=False, attn_type=None, scaling=1.0, logit_cap=0.0,
        tp_q_head_num=2, tp_k_head_num=1, tp_v_head_num=1, head_dim=8, v_head_dim=8, qk_head_dim=8,
    )  # fmt: skip
    batch = SimpleNamespace(
        forward_mode=ForwardMode[mode], spec_info=SimpleNamespace(), batch_size=3, attn_cp_metadata=None
    )
    given: list[Any] = []

    def kernel(q: Any, **_: Any) -> Any:
        given.append(q)
        return q

    theirs = type(backend).forward_decode if mode == "DECODE" else type(backend).forward_extend
    with patch("sglang.srt.layers.attention.flashattention_backend.flash_attn_with_kvcache", kernel):
        (now or Rounds(None, None)).around(Stage.fa3_attention, theirs)(backend, q, None, None, layer, batch)
    return given[0]


def _joined_in_a_capture(
    captures: Captures, parts: list[Any], mode: str = "TARGET_VERIFY", compiles: bool = False
) -> tuple[Any, Any]:
    """Return the *parts* joined by SGLang, and what a captured pass would keep."""
    from sglang.srt.layers.aux_hidden_states import pack_aux_hidden_states
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    runner = SimpleNamespace(capture_forward_mode=ForwardMode[mode], enable_torch_compile=compiles)
    kept: list[Any] = []

    def capture(backend: Any, key: ShapeKey, forward: Any) -> None:
        kept.extend(captures.join_hidden_states(pack_aux_hidden_states, parts) for _ in range(2))

    captures.capture_one(capture, SimpleNamespace(_cuda_graph_runner=runner, _graphs={}), ShapeKey(4), None)
    return pack_aux_hidden_states(parts), kept[-1]


def _mask(worker: Any) -> Any:
    return worker.target_worker.model_runner.attn_backend.verify_mask


def _batch(requests: int, idle: bool = False) -> Any:
    lengths = torch.arange(5, 5 + requests)
    spec_info = SimpleNamespace(bonus_tokens=torch.randint(0, 50, (requests,)))
    lengths_of = {"seq_lens": lengths, "seq_lens_cpu": None, "seq_lens_sum": int(lengths.sum())}
    return SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: idle), spec_info=spec_info, **lengths_of)


def _counted(asked: list[int]) -> Any:
    def original(worker: Any, batch: Any) -> Any:
        asked.append(batch.seq_lens.shape[0])
        return type(worker)._build_trivial_verify_input(worker, batch)

    return original


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return bool(mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs))
    return bool(mine == theirs)


class _Device:
    """The functions of torch.cuda that SGLang's capture calls."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def synchronize(self) -> None:
        self._events.append("wait")

    @contextlib.contextmanager
    def graph(self, **_: Any) -> Any:
        self._events.append("capture")
        yield


def _captured(
    kind: str, *, before: bool = True, ranks: int = 1, compiles: bool = False, off: bool = False
) -> tuple[list[str], Any]:
    """Capture one shape, the second if *before*; return the events in order, and the output that SGLang keeps."""
    from sglang.srt.model_executor.runner_backend import breakable_cuda_graph_backend, full_cuda_graph_backend
    from sglang.srt.model_executor.runner_utils.pool import GraphPoolPrecarve

    events: list[str] = []
    device = _Device(events)
    torch.cuda.CUDAGraph = object  # missing without CUDA
    breakable: Any = breakable_cuda_graph_backend
    breakable.BreakableCUDAGraph, breakable.BreakableCUDAGraphCapture = lambda _: object(), device.graph
    kinds = {"full": full_cuda_graph_backend.FullCudaGraphBackend, "breakable": breakable.BreakableCudaGraphBackend}
    backend = object.__new__(kinds[kind])
    earlier = {ShapeKey(8): object()}, torch.zeros(8, 1)
    backend._graphs, backend._shared_output_buffer = earlier if before else ({}, None)
    backend._outputs, backend._pool, backend._capture_stream = {}, None, None
    rows = {"cuda_graph_output_rows": len, "cuda_graph_output_capacity_rows": len}
    backend._cuda_graph_runner = SimpleNamespace(enable_torch_compile=compiles, **rows)
    backend._device_module, backend._precarve = device, GraphPoolPrecarve()
    backend._tp_group = SimpleNamespace(barrier=lambda: None, world_size=ranks)
    backend._reuse_output_buffer, backend._memory_saver_adapter = False, None
    backend._capture_inputs, backend._debug_eager, backend.deduped_cuda_graph = {}, False, None
    outputs = iter([torch.full((4, 1), float(run)) for run in (1, 2, 3)])

    def forward() -> torch.Tensor:
        events.append("run")
        return next(outputs)

    captures, key = Captures(), ShapeKey(size=4)
    captures.without_run.closed = off
    original = type(backend).capture_one
    captures.capture_one(original, backend, key, forward, post_warmup_hook=lambda: events.append("reset"))
    return events, int(backend._outputs[key][0])
