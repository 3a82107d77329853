"""The benchmarks' servers: command lines, failures, and leftovers."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.harness import shapes, start
from benchmarks.harness.acceptance import Process
from benchmarks.harness.start import POLICIES, Policy, Server, attach, policy_server

GPU = dict(kv_tokens=160_000)


def test_stock_policies_load_nothing_of_ours(tmp_path: Path) -> None:
    host = start.gpu(tmp_path / "models", 64, **GPU)
    for name, policy in POLICIES.items():
        server = policy_server(policy, host, tmp_path)
        assert ("sglang_adaptive" in server.plugins.split(",")) == name.startswith(("ema", "throughput")), name
        assert ("--speculative-algorithm" in server.command) == (name != "none"), name
    assert "--speculative-adaptive-config" not in policy_server(POLICIES["sglang-ema"], host, tmp_path).command


@pytest.mark.parametrize("name", [name for name, shape in shapes.TARGETS.items() if shapes.has_nextn(shape)])
def test_a_shape_with_a_nextn_layer_drafts_for_itself(name: str, tmp_path: Path) -> None:
    from sglang.srt.configs.model_config import ModelConfig

    host = start.gpu(tmp_path, 64, name, **GPU)
    assert [folder.name for folder in tmp_path.iterdir()] == [name]
    command = policy_server(POLICIES["throughput"], host, tmp_path / "work").command
    assert command[command.index("--speculative-algorithm") + 1] == "EAGLE"
    assert "--speculative-draft-model-path" not in command and "--speculative-adaptive-config" in command
    drafts = ModelConfig(host.target, is_draft_model=True).hf_config.architectures[0]
    assert drafts in ("DeepseekV3ForCausalLMNextN", "DeepseekV4ForCausalLMNextN")


def fake(folder: Path, name: str, code: str) -> Server:
    return Server(Policy(name), folder, [sys.executable, "-u", "-c", code], {}, 4711)


READY = "print('The server is fired up and ready to roll'); import time; time.sleep(60)"


def test_a_server_that_fails_is_tried_twice_and_others_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    codes = {"broken": "print('no such model'); raise SystemExit(3)", "well": READY}
    made: list[str] = []

    def make(policy: Policy) -> Server:
        made.append(policy.name)
        return fake(tmp_path, policy.name, codes[policy.name])

    found = start.start_all([Policy(name) for name in codes], make, time.monotonic() + 60)
    try:
        assert [server.name for server in found] == ["well"] and not found[0].alone
        assert made.count("broken") == 2
        assert "broken exited during startup: no such model" in capfd.readouterr().err
        assert "no such model" in (tmp_path / "broken-first.log").read_text()
    finally:
        for server in found:
            server.stop(grace=0)
    assert not found[0].is_running()


def test_a_server_whose_scheduler_failed_is_not_waited_for(tmp_path: Path) -> None:
    crash = f"print('{start.CRASH}'); print('ValueError: no'); import time; time.sleep(60)"
    server = fake(tmp_path, "crashed", crash)
    server.launch()
    try:
        with pytest.raises(start.NotStarted, match="crashed exited during startup: ValueError: no"):
            server.wait(time.monotonic() + 60)
    finally:
        server.stop(grace=0)


def test_a_server_that_was_left_running_is_found_as_it_was_and_stopped(tmp_path: Path) -> None:
    Process(tmp_path / "left.acceptance", create=True)
    server = fake(tmp_path, "left", READY)
    server.launch()
    server.wait(time.monotonic() + 60)
    server.alone = False
    server.leave()
    notes: list[str] = []
    [found] = start.attached(["left", "never"], tmp_path, notes.append)
    assert notes == ["without never: it was not left running"]
    assert (found.client.port, found.command, found.pid) == (4711, server.command, server.pid)
    startup = {"seconds": server.start_seconds, "alone": False, "tiers": [], "tiers_total": {"seconds": 0, "gb": 0}}
    assert found.startup() == startup
    assert found.process.read().rounds == 0
    child = server._child
    assert child is not None
    # Nobody waits for a leftover server; as this process's child, it would look alive after its end.
    threading.Thread(target=child.wait, daemon=True).start()
    start.stop_left(tmp_path)
    assert child.wait(20) != 0
    with pytest.raises(ValueError, match="left was not left running"):
        attach("left", tmp_path)
