"""What docs/compatibility.md and docs/troubleshooting.md say of reports about SGLang, asked of SGLang's own code."""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine import models
from tests import checks

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}

OVERRIDDEN = f"""
import json
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import prepare_server_args

yarn = {YARN!r}
args = prepare_server_args([
    "--model-path", {str(models.target_path())!r}, "--speculative-algorithm", "EAGLE3",
    "--speculative-draft-model-path", {str(models.draft_path())!r}, "--device", "cpu",
    "--json-model-override-args", json.dumps({{"rope_scaling": yarn}}),
])
draft = args.speculative_draft_model_path
read = [ModelConfig.from_server_args(args), ModelConfig.from_server_args(args, model_path=draft, is_draft_model=True)]
print(json.dumps([one.hf_config.rope_scaling for one in read]))
"""

SELECTED = """
import json
from types import SimpleNamespace
import msgspec
from sglang.srt.managers import io_struct
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager

def worker(role):
    return SimpleNamespace(weight_update_runners=lambda: [(role, None)])

manager = SimpleNamespace(tp_worker=worker("target"), draft_worker=worker("draft"))
named = (io_struct.UpdateWeightsFromDistributedReqInput, io_struct.BeginWeightUpdateReqInput)
usual = {field.name: field.default for one in named for field in msgspec.structs.fields(one)}["selector"]
found = {one: [role for role, _ in Manager._select_runners(manager, one)] for one in (usual, "target")}
print(json.dumps({"usual": usual, "updated": found}))
"""


def test_an_override_reaches_the_draft() -> None:
    """A `rope_scaling` in the `config.json` of the target alone does not."""
    assert all(YARN.items() <= read.items() for read in checks.scripted(OVERRIDDEN))


def test_weights_over_the_network_reach_the_draft_unless_left_out() -> None:
    assert checks.scripted(SELECTED) == {"usual": "all", "updated": {"all": ["target", "draft"], "target": ["target"]}}
