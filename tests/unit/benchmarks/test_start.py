"""The benchmarks' servers: command lines, failures, and leftovers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.harness import start
from benchmarks.harness.acceptance import Process
from benchmarks.harness.shapes import TARGETS, draft_of
from benchmarks.harness.start import POLICIES, Contender, Host, Policy, Server, attach, last_error, policy_server

GPU = dict(kv_tokens=160_000)


def test_stock_policies_load_nothing_of_ours(tmp_path: Path) -> None:
    host = start.gpu(tmp_path / "models", 64, **GPU)
    for name, policy in POLICIES.items():
        server = policy_server(policy, host, tmp_path)
        assert ("sglang_adaptive" in server.plugins.split(",")) == name.startswith(("ema", "throughput")), name
        assert ("--speculative-algorithm" in server.command) == (name != "none"), name
    assert "--speculative-adaptive-config" not in policy_server(POLICIES["sglang-ema"], host, tmp_path).command


def test_only_the_saved_policy_sees_the_kept_profile(tmp_path: Path) -> None:
    def profile_dir(name: str) -> str:
        path = POLICIES[name].files(tmp_path, tmp_path / "kept")[1]
        return str(json.loads(Path(path).read_text())["throughput"]["profile_dir"])

    assert profile_dir("throughput-saved") == str(tmp_path / "kept")
    assert profile_dir("throughput") != str(tmp_path / "kept")


def test_only_adaptive_servers_end_at_a_late_kernel(tmp_path: Path) -> None:
    host = start.gpu(tmp_path, 64, "llama70b", strict_loads=True)
    for policy in POLICIES.values():
        server = policy_server(policy, host, tmp_path)
        assert (start.STRICT_LOADS in server.environment) == policy.ours
    assert f"{tmp_path}/llama70b" in server.command and f"{tmp_path}/llama70b-eagle3" in server.command


def test_a_whole_shape_is_written_with_a_draft_as_wide(tmp_path: Path) -> None:
    start.gpu(tmp_path, 8, "qwen3-32b")
    assert json.loads((tmp_path / "qwen3-32b" / "config.json").read_text()) == TARGETS["qwen3-32b"]
    for name, target in TARGETS.items():
        draft = draft_of(target)
        assert draft["num_hidden_layers"] == 1 and draft["draft_vocab_size"] == 32000
        for shared in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
            assert draft[shared] == target[shared], (name, shared)


def fake(folder: Path, name: str, code: str) -> Server:
    """Return a server that is a small program printing SGLang's ready message."""
    return Server(Policy(name), folder, [sys.executable, "-u", "-c", code], {}, 4711)


READY = "print('The server is fired up and ready to roll'); import time; time.sleep(60)"


def test_a_server_that_fails_is_tried_twice_and_keeps_no_other_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_whatever_hangs_ends_with_its_servers(tmp_path: Path) -> None:
    """The command ignores its budget; its server ends with it."""
    program = f"""
import argparse, sys, time
from pathlib import Path
from benchmarks.harness import start
from tests.unit.benchmarks.test_start import READY, fake
parser = argparse.ArgumentParser()
start.add_options(parser, 0.0)
start.LATE = 1
given = parser.parse_args(["--work", {str(tmp_path)!r}])
server = fake(given.work, "hanging", READY)
server.launch()
print(server.pid, flush=True)
start.begin(given)
time.sleep(120)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=100, check=False
    )
    assert done.returncode == 142, done.stderr
    with pytest.raises(ProcessLookupError):
        start.os.kill(int(done.stdout), 0)


def test_a_contender_brings_its_server_into_its_state() -> None:
    asked: list[object] = []

    class Told:
        policy, name = POLICIES["throughput"], "throughput"
        force = configure = staticmethod(asked.append)

        @property
        def client(self) -> Told:
            return self

    server: Server = Told()  # type: ignore[assignment]
    for contender, name, orders in (
        (Contender(server), "throughput", [None]),
        (Contender(server, 3), "static-3", [3]),
        (Contender(server, None, "ours", {"policy": "throughput"}), "ours", [{"policy": "throughput"}, None]),
    ):
        asked.clear()
        contender.take_over()
        assert (contender.name, asked) == (name, orders)


def test_tiers_from_the_log() -> None:
    line = "[x] Built adaptive runtime state steps={}: elapsed={}s, mem={}GB\n"
    log = line.format(0, "3.40", "0.31") + "something else\n" + line.format(7, "4.95", "1.10")
    built = start.tiers_built(log)
    assert built == [{"steps": 0, "seconds": 3.4, "gb": 0.31}, {"steps": 7, "seconds": 4.95, "gb": 1.1}]


def test_the_last_error_is_the_cause_and_not_its_echo() -> None:
    log = "\n".join(
        [
            "[2026-11-23 21:29:02] Scheduler hit an exception: Traceback (most recent call last):",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).",
            "[2026-11-23 21:30:07] kill_process_tree called",
        ]
    )
    assert last_error(log) == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert last_error("one\ntwo\n") == "two"


def test_the_script_for_a_remote_host_hands_back_what_there_is(tmp_path: Path) -> None:
    """Also for a command that fails: the console output and the tails of the logs."""
    root, out = Path(__file__).parents[3], tmp_path / "out"
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "none.log").write_text("a line\n")
    environment = {**start.os.environ, "WORK": str(tmp_path), "OUT": str(out)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    script = ["bash", root / "benchmarks" / "gpu.sh", "served", "drive", "nothing"]
    done = subprocess.run(script, env=environment, capture_output=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "invalid choice" in (out / "console.txt").read_text() and (out / "results.tar.gz").exists()
    listed = subprocess.run(["tar", "-tzf", out / "logs.tar.gz"], capture_output=True, text=True, check=True)
    assert "none.tail" in listed.stdout


def test_hosts_differ_in_weights_and_graphs(tmp_path: Path) -> None:
    real = Host("t", "d", 8, weights=("--dtype", "bfloat16"), prefill_graphs=True)
    command = real.command(POLICIES["none"], tmp_path, 1)
    assert "--load-format" not in command and "--cuda-graph-backend-prefill" not in command
