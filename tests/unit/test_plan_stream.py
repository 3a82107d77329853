"""SGLang's plan stream: what of it shows without a second stream, on SGLang's own classes.

That a plan and a draft run side by side, and disturb nothing, takes a GPU: tests/gpu/test_plan_stream.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sglang_adaptive.cpu_engine.launcher import environment

SCRIPT = """
import dataclasses, json, os
from types import SimpleNamespace

import sgl_kernel
sgl_kernel.merge_state_v2 = None  # fa3's module asks for it by name; nothing here computes attention
import torch
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.model_executor.cuda_graph_buffer_registry import build_decode_registry
from sglang.srt.model_executor.runner_utils.buffers import DecodeInputBuffers
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EagleDraftInputBuffers
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang_adaptive.sglang_plugin import early_plan, hooks, plan_obstacles, plan_stream

SGLANG_VARIABLE = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"

def answer(backend_class, topk):
    verify = EagleVerifyInput.create_idle_input(topk=topk, spec_steps=3, num_verify_tokens=4, device="cpu")
    try:
        return object.__new__(backend_class).update_verify_buffers_to_fill_after_draft(verify, cuda_graph_bs=None)
    except NotImplementedError as error:
        return f"NotImplementedError: {error}"

def answers():
    return {
        "fa3": answer(FlashAttentionBackend, 1), "fa3 tree": answer(FlashAttentionBackend, 4),
        "flashinfer": answer(FlashInferAttnBackend, 1), "another": answer(TorchNativeAttnBackend, 1),
    }

MOST, WIDTH = 4, 3

def target_inputs():
    inputs = DecodeInputBuffers.create(
        device="cpu", max_bs=MOST, max_num_token=MOST * WIDTH, hidden_size=8, dtype=torch.bfloat16,
        next_token_logits_buffer=torch.zeros(1), num_dp_ranks=1, pp_size=1, is_encoder_decoder=False,
        require_mlp_tp_gather=False, seq_len_fill_value=1, encoder_len_fill_value=0, num_tokens_per_req=WIDTH,
        cache_loc_dtype=torch.int64, enable_mamba_track=False,
    )
    inputs.share_buffers()
    return inputs

def draft_inputs():
    fields = {field.name: None for field in dataclasses.fields(EagleDraftInputBuffers)}
    fields["seq_lens"] = torch.ones(MOST, dtype=torch.int64)
    fields["req_pool_indices"] = torch.zeros(MOST, dtype=torch.int64)
    fields["out_cache_loc"] = torch.zeros(MOST * WIDTH, dtype=torch.int64)
    inputs = EagleDraftInputBuffers(**fields)
    inputs.share_buffers()
    return inputs

def shared():
    target, draft = target_inputs(), draft_inputs()
    names = ("seq_lens", "req_pool_indices", "out_cache_loc")
    return [name for name in names if getattr(target, name).data_ptr() == getattr(draft, name).data_ptr()]

extra = {}
for stream, early in ("00", "10", "01", "11"):
    os.environ[SGLANG_VARIABLE], os.environ[plan_stream.EARLY] = stream, early
    extra[stream + early] = len(hooks.of_scheduler()) - len(hooks.SCHEDULER)
streams = [eagle_worker_v2.get_plan_stream("cpu")[0] is not None]
with get_context().override_server_args():
    stock = {"answers": answers(), "shared": shared()}
    wanted = hooks.of_scheduler()
    hooks.add_and_apply(wanted)
    streams.append(eagle_worker_v2.get_plan_stream("cpu")[0] is not None)
    hooked = {"answers": answers(), "shared": shared()}
    registry = build_decode_registry(
        device="cpu", max_bs=MOST, max_num_token=MOST * WIDTH, seq_len_fill_value=1, cache_loc_dtype=torch.int64,
        source=target_inputs(),
    )

def target():
    backend = object.__new__(FlashAttentionBackend)
    backend.topk, backend.has_swa, backend.use_sliding_window_kv_pool = 1, False, False
    backend.local_attn_builder, backend.is_encoder_decoder = None, False
    graphs = SimpleNamespace(
        ragged_verify_mode=False, _metadata_glue=None, enable_two_batch_overlap=False, enable_pdmux=False,
        require_gathered_buffer=False,
    )
    return SimpleNamespace(
        attn_backend=backend, decode_cuda_graph_runner=graphs, model_config=SimpleNamespace(model_is_mrope=False),
        lora_manager=None, hisparse_coordinator=None, canary_manager=None,
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        kv_index_translator=SimpleNamespace(is_translating=False),
    )

def why_not(change=lambda target: None, pp_size=1):
    runner = target()
    change(runner)
    with get_context().override_server_args(), get_parallel().override(pp_size=pp_size):
        return plan_obstacles.obstacle(runner)

obstacles = [
    why_not(),
    why_not(lambda t: setattr(t, "attn_backend", object.__new__(FlashInferAttnBackend))),
    why_not(lambda t: setattr(t, "decode_cuda_graph_runner", None)),
    why_not(lambda t: setattr(t.attn_backend, "has_swa", True)),
    why_not(lambda t: setattr(t.model_config, "model_is_mrope", True)),
    why_not(lambda t: setattr(t.kv_index_translator, "is_translating", True)),
    why_not(pp_size=2),
]
on_cpu = early_plan.EarlyPlan()
on_cpu.note(SimpleNamespace(seq_lens=torch.ones(2)))
print(json.dumps({
    "stock": stock, "hooked": hooked, "obstacles": obstacles,
    "extra_hooks": extra, "streams": streams,
    "slots": sorted(set(registry._slots) - early_plan.PLANNED_INPUTS), "noted_on_cpu": on_cpu._slots is not None,
}))
"""


@pytest.fixture(scope="module")
def early() -> dict[str, Any]:
    """What the script finds where SGLang was never imported; both variables are set when it hooks."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment()}, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    facts: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return facts


def test_stock_backends_cannot_answer(early: dict[str, Any]) -> None:
    assert set(early["stock"]["answers"].values()) == {"NotImplementedError: "}


def test_a_chain_on_fa3_and_flashinfer_needs_no_correction(early: dict[str, Any]) -> None:
    answers = early["hooked"]["answers"]
    assert answers["fa3"] is None and answers["flashinfer"] is None
    assert answers["another"] == "NotImplementedError: "


def test_a_tree_is_refused_by_name(early: dict[str, Any]) -> None:
    assert early["hooked"]["answers"]["fa3 tree"] == (
        "NotImplementedError: SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with FlashAttentionBackend verifies chains only, and "
        "--speculative-eagle-topk 4 makes a tree: use 1, or unset the variable"
    )


def test_a_plan_writes_nothing_that_the_draft_graph_reads(early: dict[str, Any]) -> None:
    assert early["stock"]["shared"] == ["seq_lens", "req_pool_indices", "out_cache_loc"]
    assert early["hooked"]["shared"] == []
    assert early["slots"] == [], "SGLang's plan fills inputs that are still shared"


def test_only_a_plain_chain_on_fa3_is_planned_early(early: dict[str, Any]) -> None:
    assert early["obstacles"] == [
        None,
        "FlashInferAttnBackend is not fa3",
        "this depth has no CUDA graph of the verify",
        "attention has a sliding window",
        "the model uses M-RoPE positions",
        "the KV pool translates slots",
        "pipeline parallelism drafts in the round before",
    ]
    assert early["noted_on_cpu"] is False


def test_the_early_plan_takes_the_place_of_sglangs_stream(early: dict[str, Any]) -> None:
    assert early["streams"] == [True, False]


def test_the_environment_says_which_hooks_a_scheduler_gets(early: dict[str, Any]) -> None:
    # None, SGLang's variable, both, and ours alone: one hook answers the question, four more plan early.
    assert early["extra_hooks"] == {"00": 0, "10": 1, "11": 5, "01": 0}
