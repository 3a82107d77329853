"""Hybrid models whose depth must not change are refused with the reason, by the server and by the doctor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import checks

SMALL = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "intermediate_size": 128,
}  # fmt: skip
GRANITE = {"model_type": "granitemoehybrid", "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2}
MODELS: dict[str, dict[str, Any]] = {
    "NemotronHForCausalLM": {"model_type": "nemotron_h", "hybrid_override_pattern": "M*M-"},
    "FalconH1ForCausalLM": {"model_type": "falcon_h1"},
    "GraniteMoeHybridForCausalLM": {**GRANITE, "layer_types": ["mamba", "attention"] * 2},
    "Lfm2ForCausalLM": {"model_type": "lfm2"},
    "Qwen3NextForCausalLM": {"model_type": "qwen3_next"},
    "LlamaForCausalLM": {"model_type": "llama"},
    "InklingForConditionalGeneration": {"model_type": "inkling_model"},
}
"""Only configurations; the first three have Mamba2 layers."""

SCRIPT = """
import json
from sglang.srt.server_args import ServerArgs
from sglang_adaptive.sglang_plugin.launch import activation
from sglang_adaptive.sglang_plugin.launch import checkup
from sglang_adaptive.sglang_plugin import repairs

folders, config = json.loads(INPUT)
found = {}
for name, folder in folders.items():
    line = ["--model-path", folder, "--speculative-algorithm", "EAGLE", "--speculative-adaptive-config", config]
    def args(**more):
        return ServerArgs(model_path=folder, device="cpu", speculative_algorithm="EAGLE3", **more)
    found[name] = {
        "server": activation.note_reason(lambda server_args: None, args()),
        "unified": repairs.hybrid_obstacle(args(enable_unified_memory=True)),
        "flashinfer": repairs.hybrid_obstacle(args(mamba_backend="flashinfer")),
        "doctor": checkup.launch([*line, "--device", "cuda"])["reason"],
        "SGLang first": activation.note_reason(lambda server_args: "its own", args()),
    }
found["nowhere"] = repairs.hybrid_obstacle(ServerArgs(model_path="/nowhere", device="cpu"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folders: dict[str, str] = {}
    for name, own in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps({"architectures": [name], **SMALL, **own}))
        folders[name] = str(folder)
    config = tmp_path_factory.mktemp("adaptive") / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [1, 3]}}))
    told: dict[str, Any] = checks.scripted(SCRIPT.replace("INPUT", repr(json.dumps([folders, str(config)]))))
    return told


def test_mamba2_is_refused_with_another_kernel_in_one_line(found: dict[str, Any]) -> None:
    for name in list(MODELS)[:3]:
        reason = found[name]["flashinfer"]
        assert reason.startswith("--mamba-backend flashinfer: ") and "\n" not in reason, name
    assert found["Lfm2ForCausalLM"]["flashinfer"] is found["Qwen3NextForCausalLM"]["flashinfer"] is None


def test_hybrids_are_refused_with_unified_memory_and_inkling_always(found: dict[str, Any]) -> None:
    for name in list(MODELS)[:5]:
        assert found[name]["server"] is found[name]["doctor"] is None, name
        assert found[name]["unified"].startswith("--enable-unified-memory "), name
    told = found["InklingForConditionalGeneration"]
    assert told["server"] == told["doctor"] == told["unified"]
    assert told["server"].startswith("Inkling's short convolutions ")


def test_what_sglang_says_comes_first_and_other_models_are_left_to_it(found: dict[str, Any]) -> None:
    assert {found[name]["SGLang first"] for name in MODELS} == {"its own"}
    assert set(found["LlamaForCausalLM"].values()) == {None, "its own"} and found["nowhere"] is None
