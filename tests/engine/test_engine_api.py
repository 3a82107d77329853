"""sglang.Engine, in a fork of a process that has imported SGLang."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.serve_cpu import ATTENTION_BACKEND
from tests import forked_servers
from tests.engine.workload import Case, Expected, Output

SCRIPT = """
import json, sys
import sglang

def main():
    prompts, arguments, bad, good = json.loads(sys.argv[1])
    try:
        sglang.Engine(**arguments, speculative_adaptive_config=bad)
        refusal = None
    except Exception as error:
        refusal = [type(error).__name__, str(error)]
    engine = sglang.Engine(**arguments, speculative_adaptive_config=good)
    answers = engine.generate(prompts, {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True})
    state = engine.get_server_info()["internal_states"][0]["adaptive"]
    engine.shutdown()
    print("ANSWER " + json.dumps([refusal, answers, state]))

if __name__ == "__main__":
    # Its children import nothing again; those of `sglang serve`, which another test starts, import for themselves.
    from sglang_adaptive.lab.cpu_engine import start
    start.open_nursery(start.MODULES)
    main()
"""


def test_an_engine_adapts_without_loss(tmp_path: Path, expected: Expected, easy: list[str], hard: list[str]) -> None:
    """After a refused configuration in the same process."""
    bad, good, script = tmp_path / "bad.json", tmp_path / "good.json", tmp_path / "script.py"
    bad.write_text('{"1": {"candidate_steps": [1, true]}}')
    good.write_text('{"1": {"candidate_steps": [1, 3], "warmup_batches": 2}}')
    script.write_text(SCRIPT)
    arguments = {
        "model_path": str(models.target_path()),
        "speculative_draft_model_path": str(models.draft_path()),
        "speculative_algorithm": "EAGLE3",
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": ATTENTION_BACKEND,
        "max_total_tokens": 8192,
        "max_running_requests": 8,
        "log_level": "warning",
    }
    prompts = [easy[0], hard[0]]
    words = ["script.py", json.dumps([prompts, arguments, str(bad), str(good)])]
    run = f"import runpy, sys; sys.argv = {words!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    found = forked_servers.launch([], f"{run}; raise SystemExit(0)")
    assert found.code == 0, found.output[-4000:]
    line = next(line for line in found.output.splitlines() if line.startswith("ANSWER "))
    (name, message), answers, state = json.loads(line.removeprefix("ANSWER "))
    assert name == "ConfigError" and "\n" not in message
    assert message.startswith(f"{bad}: 1.candidate_steps[1]: got true")
    assert (state["active"], state["policy"], state["tiers"]) == (True, "ema", [1, 3])
    assert sum(state["rounds_by_tier"].values()) > 0
    assert [Output.of(answer) for answer in answers] == expected([Case(prompt) for prompt in prompts])
