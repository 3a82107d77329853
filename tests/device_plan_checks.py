"""Checks which FlashInfer passes are planned on the device, with which lengths, and which are left to SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.fast_path import flashinfer
from sglang_adaptive.sglang_plugin.stages.fast_path.decode_kernel import DecodeKernel
from sglang_adaptive.sglang_plugin.stages.fast_path.flashinfer import DevicePlans
from sglang_adaptive.sglang_plugin.stages.fast_path.tile_kernel import TILE, with_small_tiles
from tests.tile_checks import COLUMNS, POISON, PROCESSORS, ROWS, poison, sums, wrapper_of

LENGTHS = (5, 700, 33)
WIDTH, STEPS = 4, 3
HEADS, KEY_HEADS = 8, 2

DECODES, VERIFIES, EXTENDS = (
    "decode_cuda_graph_metadata",
    "prefill_cuda_graph_metadata",
    "draft_extend_cuda_graph_metadata",
)


class FlashInferAttnBackend:
    """The parts of SGLang's class of this name that the plans read, with wrappers as FlashInfer's planner left them."""

    def __init__(self, **other: Any) -> None:
        false = (
            *("use_sliding_window_kv_pool", "enable_deterministic", "disable_cuda_graph_kv_split", "is_dllm_model"),
            *("prefill_uses_dequant_workspace", "decode_uses_dequant_workspace"),
        )
        table = torch.arange(ROWS * COLUMNS, dtype=torch.int32).view(ROWS, COLUMNS)
        translator = SimpleNamespace(is_translating=False, reads_are_translated=False, req_to_token=table)
        heads = SimpleNamespace(num_qo_heads=HEADS, num_kv_heads=KEY_HEADS, head_dim=128)
        self.__dict__ |= dict.fromkeys(false, False) | {DECODES: self._of(1), VERIFIES: self._of(WIDTH, mask=True)}
        self.__dict__ |= {EXTENDS: self._of(WIDTH), "prefill_backend": "fa2", "decode_backend": "fa2"}
        self.__dict__ |= {"dispatch_reason": None, "kv_index_translator": translator, "indices_updater_decode": heads}
        self.__dict__ |= other

    def _of(self, width: int, mask: bool = False) -> dict[int, list[Any]]:
        requests = len(LENGTHS)
        wrapper = wrapper_of(requests, width, True, HEADS)
        wrapper.device = "cpu"
        wrapper._paged_kv_indptr_buf, wrapper._qo_indptr_buf = poison(requests + 1), poison(requests + 1)
        wrapper._paged_kv_indices_buf = poison(4 * sum(LENGTHS))
        wrapper._custom_mask_buf = poison(4 * sum(LENGTHS), torch.uint8) if mask else None
        wrapper._mask_indptr_buf = poison(requests + 1) if mask else None
        return {requests: [wrapper]}

    def ends(self, of: str) -> list[int]:
        """Return the prefix sums of the keys that this kind of pass reads."""
        found: list[int] = getattr(self, of)[len(LENGTHS)][0]._paged_kv_indptr_buf.tolist()
        return found


def each_pass_reads_what_it_read_on_the_host() -> None:
    backend = FlashInferAttnBackend()
    for kind, decodes, more in ((VERIFIES, False, WIDTH), (EXTENDS, False, 0), (DECODES, True, 1)):
        assert _planned(backend, _pass(kind), decodes)
        assert backend.ends(kind) == sums([length + more for length in LENGTHS]), kind


def each_step_of_a_draft_reads_one_token_more() -> None:
    steps = [FlashInferAttnBackend() for _ in range(STEPS - 1)]
    assert _draft_planned(steps)
    for place, one in enumerate(steps):
        assert one.ends(DECODES) == sums([length + place + 1 for length in LENGTHS])


def lengths_on_the_host_are_planned_by_sglang() -> None:
    """If the host needs the lengths anyway, a device plan saves nothing."""
    backend, steps = FlashInferAttnBackend(), [FlashInferAttnBackend()]
    known = _pass(VERIFIES)
    known.seq_lens_cpu = known.seq_lens
    assert not _planned(backend, known) and _untouched(backend)
    assert not _draft_planned(steps, known) and _untouched(*steps)


def other_passes_are_left_to_sglang() -> None:
    translating = SimpleNamespace(is_translating=True, reads_are_translated=False, req_to_token=None)
    others = (
        *({name: True} for name in ("enable_deterministic", "use_sliding_window_kv_pool", "is_dllm_model")),
        *({name: True} for name in ("prefill_uses_dequant_workspace", "disable_cuda_graph_kv_split")),
        *({"prefill_backend": "fa3"}, {"decode_backend": "fa3"}, {"dispatch_reason": "a sliding window"}),
        {"kv_index_translator": translating},
    )
    for other in others:
        backend = FlashInferAttnBackend(**other)
        assert not _planned(backend, _pass(VERIFIES)) and _untouched(backend), other
        assert not _draft_planned([backend]) and _untouched(backend), other
    tree, encoder, wide = _pass(VERIFIES), _pass(VERIFIES), _pass(VERIFIES)
    tree.spec_info.topk, encoder.encoder_lens, wide.spec_info.draft_token_num = 2, torch.ones(3), WIDTH + 1
    for one in (tree, encoder, wide):
        backend = FlashInferAttnBackend()
        assert not _planned(backend, one) and _untouched(backend)
    assert not _draft_planned([FlashInferAttnBackend()], topk=2)
    assert not _draft_planned([FlashInferAttnBackend()], draft_window_size=64)


def a_graph_has_tiles_for_the_queries_of_a_request() -> None:
    """FlashInfer plans for the longest request that fits in the rows; only the tile changes in its plan."""
    assert WIDTH * HEADS // KEY_HEADS == 16
    tree, narrow = _pass(VERIFIES), {"num_qo_heads": KEY_HEADS, "num_kv_heads": KEY_HEADS, "head_dim": 512}
    tree.spec_info.topk = 2
    others = {"indices_updater_decode": SimpleNamespace(**narrow)}
    for one, kind, wanted, major, other in (
        *((_pass(kind), kind, 16, 8, {}) for kind in (VERIFIES, EXTENDS)),
        *((tree, VERIFIES, 128, 8, {}), (_pass(VERIFIES), VERIFIES, 128, 7, {})),
        *((_pass(VERIFIES), VERIFIES, 128, 8, other) for other in (others, {"prefill_backend": "fa3"})),
    ):
        backend, plans = FlashInferAttnBackend(**other), DevicePlans(DecodeKernel())
        wrapper = getattr(backend, kind)[len(LENGTHS)][0]
        wrapper._plan_info[TILE] = 128
        before = list(wrapper._plan_info)
        with _a_gpu(major):
            plans.captured(backend, one)
        assert not plans.guard.closed
        assert list(wrapper._plan_info) == [*before[:TILE], wanted, *before[TILE + 1 :]], (kind, major, other)


def a_graph_of_zero_steps_has_no_plan_of_a_verify() -> None:
    backend, one, now = FlashInferAttnBackend(skip_prefill=False), _pass(VERIFIES), Rounds(None, None)
    one.spec_info.draft_token_num = 1
    setattr(backend, VERIFIES, {})
    seen: list[Any] = []
    with _a_gpu():
        now.around(Stage.plan_replay, lambda _, given, *more: seen.append(given))(backend, one, in_capture=True)
    assert seen[0].forward_mode.is_decode() and not now.of(DevicePlans)[0].guard.closed


def tiles_are_the_smallest_that_hold_a_request() -> None:
    """Tiles have one of FlashInfer's three sizes and are never larger than FlashInfer planned."""
    for planned, rows, wanted in ((128, 16, 16), (128, 17, 64), (128, 64, 64), (128, 65, 128), (16, 20, 16)):
        assert with_small_tiles([1, 2, 3, planned, 5], rows) == [1, 2, 3, wanted, 5]


def after_an_error_sglang_plans_with_lengths_of_the_device() -> None:
    plans, backend, one = DevicePlans(DecodeKernel()), FlashInferAttnBackend(), _pass(VERIFIES)
    getattr(backend, VERIFIES)[len(LENGTHS)][0]._plan_info = [1, 2, 3]
    assert not _planned(backend, one, plans=plans) and plans.guard.closed
    assert not _planned(FlashInferAttnBackend(), _pass(EXTENDS), plans=plans)
    assert one.seq_lens_cpu.tolist() == list(LENGTHS) and one.seq_lens_sum == sum(LENGTHS)
    one.seq_lens = None  # they are not read again
    assert not _planned(backend, one, plans=plans)


def a_draft_extend_without_a_graph_is_planned_with_lengths_before_it() -> None:
    """A catch-up wider than the graphs of its batch size: FlashInfer's planner asks which requests have a prefix."""
    one, seen = _pass(EXTENDS), list[Any]()
    one.extend_prefix_lens_cpu, one.extend_prefix_lens = None, one.seq_lens - WIDTH
    DevicePlans(DecodeKernel()).plan(lambda backend, told: seen.append(told), FlashInferAttnBackend(), one)
    assert seen[0].seq_lens_cpu.tolist() == list(LENGTHS)
    assert seen[0].extend_prefix_lens_cpu == [length - WIDTH for length in LENGTHS]


def _planned(backend: Any, one: Any, decodes: bool = False, plans: DevicePlans | None = None) -> bool:
    asked: list[Any] = []
    kernel: Any = SimpleNamespace(runs=lambda *_: decodes)
    with _a_gpu():
        (plans or DevicePlans(kernel)).plan_replay(lambda *given: asked.append(given), backend, one)
    return not asked


def _draft_planned(steps: list[Any], one: Any = None, **other: Any) -> bool:
    asked, plans = list[Any](), DevicePlans(DecodeKernel())
    draft = SimpleNamespace(**{"topk": 1, "draft_window_size": 0, "attn_backends": steps} | other)
    with _a_gpu():
        plans.plan_draft_replay(lambda *given: asked.append(given), draft, one or _pass(DECODES))
    assert not plans.guard.closed
    return not asked


def _a_gpu(major: int = 9) -> Any:
    properties = SimpleNamespace(multi_processor_count=PROCESSORS, major=major)
    return mock.patch.object(flashinfer.torch.cuda, "get_device_properties", lambda device: properties)


def _pass(kind: str) -> Any:
    """Return an SGLang pass over all requests, whose lengths are only on the device."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    verified = object.__new__(EagleVerifyInput)
    verified.topk, verified.draft_token_num, verified.num_tokens_per_req = 1, WIDTH, WIDTH
    mode = ForwardMode.DRAFT_EXTEND_V2 if kind == EXTENDS else ForwardMode.TARGET_VERIFY
    return SimpleNamespace(
        forward_mode=mode, batch_size=len(LENGTHS), spec_info=verified, encoder_lens=None, seq_lens_cpu=None,
        seq_lens_sum=None, seq_lens=torch.tensor(LENGTHS), req_pool_indices=torch.tensor([4, 0, 7]),
    )  # fmt: skip


def _untouched(*backends: Any) -> bool:
    return all(set(one.ends(kind)) == {POISON} for one in backends for kind in (DECODES, VERIFIES, EXTENDS))
