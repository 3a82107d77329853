"""Checks which launch lines with attention DP may adapt, asking SGLang."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sglang.srt.layers.moe.utils import MoeA2ABackend
from sglang.srt.server_args import ServerArgs

from sglang_adaptive.sglang_plugin.env import OFF
from sglang_adaptive.sglang_plugin.launch.line import static_reason
from sglang_adaptive.sglang_plugin.start.profiles import _attention
from sglang_adaptive.sglang_plugin.start.state_builds import ranks_pad_alike
from tests.launch_lines import verdicts
from tests.repair_checks.parts import published

GEMMA_4_ASSISTANT = verdicts.HERE / "configs" / "gemma-4-assistant"


def prepare() -> None:
    os.environ.pop(OFF, None)


def it_is_taken() -> None:
    """Lines without attention DP are as well."""
    assert [_reason(speculative_algorithm=name) for name in ("EAGLE", "EAGLE3", "NEXTN")] == [None] * 3
    assert _reason({OFF: ""}) is None
    assert _reason(dp=False) is None and _reason({OFF: "attention-dp"}, dp=False) is None


def it_is_refused_with_the_reason() -> None:
    coordination = "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"
    for told, environment, line in (
        ("not synchronized", {OFF: "attention-dp"}, {}),
        ("skip the gather", {"SGLANG_SCHEDULER_SKIP_ALL_GATHER": "1"}, {}),  # each rank would run its own steps
        (coordination, {coordination: "1"}, {}),
        ("topk", {}, {"speculative_eagle_topk": 4}),
        ("two_batch", {}, {"enable_two_batch_overlap": True}),
        ("STANDALONE", {}, {"speculative_algorithm": "STANDALONE"}),
        ("NGRAM", {}, {"speculative_algorithm": "NGRAM"}),
        ("FROZEN_KV_MTP", {}, {"speculative_draft_model_path": str(GEMMA_4_ASSISTANT)}),
    ):
        assert told in (_reason(environment, **line) or ""), told


def ranks_pad_alike_unless_nothing_gathers_their_tokens() -> None:
    """If nothing gathers the ranks' tokens, graphs must exist at every size."""
    one, dp = {"tp_size": 2}, {"tp_size": 2, "attn_dp_size": 2}
    local = {**dp, "moe_dense_tp_size": 1, "enable_dp_lm_head": True}
    assert _alike("none", one) and _alike("none", dp) and _alike("deepep", dp)
    assert _alike("deepep", {**local, "enable_dp_lm_head": False}) and _alike("flashinfer", local)
    assert not _alike("deepep", local) and not _alike("mooncake", local)


def _alike(experts: str, line: dict[str, Any]) -> bool:
    backend = "sglang.srt.layers.moe.utils.get_moe_a2a_backend"
    with published(device="cpu", **line), patch(backend, return_value=MoeA2ABackend(experts)):
        return ranks_pad_alike()


def times_of_attention_dp_are_kept_apart() -> None:
    plain, names = _attention(SimpleNamespace(attention_backend="fa3", attn_dp_size=1)), set()
    for ranks, experts in ((2, "none"), (4, "none"), (2, "deepep")):
        names.add(_attention(SimpleNamespace(attention_backend="fa3", attn_dp_size=ranks, moe_a2a_backend=experts)))
    assert plain == "fa3" and len(names | {plain}) == 4


def _reason(environment: dict[str, str] | None = None, dp: bool = True, **more: Any) -> str | None:
    line = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1, **more}
    if dp:
        line |= {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}
    with patch.dict(os.environ, environment or {}):
        return static_reason(ServerArgs(model_path="/nowhere", device="cpu", **line))
