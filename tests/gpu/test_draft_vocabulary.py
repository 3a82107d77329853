"""A draft with a vocabulary of its own, as published EAGLE-3 drafts have: SGLang compiles a part of its passes."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.engine.workload import run
from tests.gpu.servers import CASES, TIERS, Line, run_while_switching, serving_together, tiny_pair


def test_it_starts_and_drafts_as_one_with_the_targets_vocabulary(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    pair = tiny_pair(tmp_path, "fa3")
    weights = Path(shutil.copytree(pair[-1], tmp_path / "draft"), "model.safetensors")
    tensors = load_file(weights)
    # How far each of the draft's tokens is from the target's that it stands for.
    tensors["d2t"] = torch.zeros(len(tensors["lm_head.weight"]), dtype=torch.int64)
    save_file(tensors, weights)
    lines = [
        Line(tmp_path / "own.log", (*pair[:-1], str(weights.parent)), "fa3", TIERS),
        Line(tmp_path / "same.log", pair, "fa3", TIERS),
    ]
    with serving_together(*lines) as (own, same):
        run_while_switching(own)
        for steps in reversed(TIERS):
            outputs = []
            for client in (own, same):
                client.force_steps(steps)
                outputs.append(run(client, CASES, at_once=1))
            assert outputs[0] == outputs[1], steps
    assert "disabled short-captures" not in lines[0].log.read_text()
