"""SGLang's plan stream on SGLang's own classes; that it serves on a GPU is tested in tests/gpu/test_plan_stream.py."""

from __future__ import annotations

from typing import Any

from tests import checks

SCRIPT = """
import json, os

import sgl_kernel
sgl_kernel.merge_state_v2 = None  # fa3's module asks for it by name; nothing here computes attention
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process

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

extra = {}
for stream in "01":
    os.environ["SGLANG_ENABLE_OVERLAP_PLAN_STREAM"] = stream
    extra[stream] = len(hooks.of_scheduler()) - len(hooks.hooks(Process.SCHEDULER))
with get_context().override_server_args():
    stock = answers()
    hooks.install_now(hooks.of_scheduler())
    hooked = answers()
print(json.dumps({"stock": stock, "hooked": hooked, "extra_hooks": extra}))
"""


def test_chains_of_fa3_and_flashinfer_need_no_correction_and_a_tree_is_refused_by_name() -> None:
    facts: dict[str, Any] = checks.scripted(SCRIPT)  # the variable is set when it hooks
    assert set(facts["stock"].values()) == {"NotImplementedError: "}
    hooked = facts["hooked"]
    assert hooked["fa3"] is None and hooked["flashinfer"] is None and hooked["another"] == "NotImplementedError: "
    assert "FlashAttentionBackend" in hooked["fa3 tree"] and "--speculative-eagle-topk 4" in hooked["fa3 tree"]
    assert facts["extra_hooks"] == {"0": 0, "1": 1}, "a server without the plan stream has no such hook"
