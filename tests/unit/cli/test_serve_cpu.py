"""What serve-cpu adds to a command line and to the environment, and how it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_adaptive import serve_cpu
from sglang_adaptive.lab.cpu_engine.server import READY, BootLog
from sglang_adaptive.serve_cpu import ATTENTION_BACKEND, PLUGIN, LaunchError, default_arguments, environment
from tests.refusals import refused


def options(arguments: list[str]) -> dict[str, str]:
    """Flags of a command line with the word after them."""
    after = [*arguments[1:], ""]
    return {flag: value for flag, value in zip(arguments, after, strict=True) if flag.startswith("--")}


def test_defaults_choose_the_cpu_and_this_package():
    added = options(default_arguments(["--model-path", "M"]))
    assert added["--device"] == "cpu"
    assert added["--attention-backend"] == ATTENTION_BACKEND
    assert added["--host"] == "127.0.0.1"
    assert added["--dtype"] == "float32"
    assert added["--cuda-graph-backend-decode"] == added["--cuda-graph-backend-prefill"] == "disabled"
    for given in (["--dtype", "bfloat16"], ["--dtype=bfloat16"]):
        assert "--dtype" not in options(default_arguments(given))
    assert not [flag for flag in default_arguments(["--disable-cuda-graph"]) if "graph" in flag]


def test_the_stand_in_comes_first_and_keeps_the_users_path():
    path = environment(base={"PYTHONPATH": "/a:/b"})["PYTHONPATH"].split(os.pathsep)
    assert path == [str(serve_cpu.STAND_IN), "/a", "/b"]
    assert (serve_cpu.STAND_IN / "sgl_kernel" / "__init__.py").is_file()


def test_a_list_of_allowed_plugins_gains_this_one():
    assert environment(base={"SGLANG_PLUGINS": "other"})["SGLANG_PLUGINS"] == f"other,{PLUGIN}"
    assert "SGLANG_PLUGINS" not in environment(base={})
    assert "SGLANG_PLUGINS" not in environment(base={"SGLANG_PLUGINS": PLUGIN})
    assert serve_cpu.EXTERNAL_MODELS in environment(base={})
    assert serve_cpu.EXTERNAL_MODELS not in environment(base={serve_cpu.EXTERNAL_MODELS: "theirs"})


def test_the_users_arguments_come_in_order_and_threads_reach_only_the_process(monkeypatch):
    started = {}
    monkeypatch.setattr(os, "execve", lambda path, line, env: started.update(line=line, env=env))
    serve_cpu.main(["--model-path", "M", "--threads", "3", "--port=1"])
    assert started["env"]["OMP_NUM_THREADS"] == "3"
    start = [sys.executable, "-m", "sglang_adaptive.lab.cpu_engine.start"]
    assert started["line"][:6] == [*start, "--model-path", "M", "--port=1"]
    assert "--threads" not in started["line"]


@pytest.mark.parametrize(
    "argv, words",
    [
        ([], "--model-path is missing"),
        (["--model-path", "M", "--threads", "0"], "--threads: got 0"),
        (["--model-path", "M", "--threads", "two"], "--threads: got two"),
        (["--model-path", "M", "--threads"], "--threads: a number is missing"),
        (["--model-path", "M", "--device=cuda"], "--device cuda"),
        (["--model-path", "M", "--device", "cuda"], "--device cuda"),
        (["--model-path", "M", "--config", "server.yaml"], "--config: serve-cpu takes no file of arguments"),
    ],
)
def test_a_bad_command_line_is_one_line_and_an_exit_code(argv, words, capsys):
    assert words in refused(capsys, ["serve-cpu", *argv])


def test_an_environment_without_the_plugin_is_refused(monkeypatch):
    monkeypatch.setattr(serve_cpu, "entry_points", lambda **_: ())
    with pytest.raises(LaunchError, match="not installed"):
        environment()


def test_without_the_launcher_the_stand_in_is_not_importable():
    code = "import importlib.util as u; s = u.find_spec('sgl_kernel'); print(s.origin if s else '')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert str(serve_cpu.STAND_IN) not in found


def test_boot_stages_are_reported_once_and_in_order(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text("noise\nserver_args={}\nLoad wei")
    log = BootLog(path)
    assert log.new_stages() == ["arguments accepted, starting processes"]
    with path.open("a") as out:
        out.write("ght begin. x\nLoad weight begin. draft\n")
    assert log.new_stages() == ["processes started", "loading weights"]
    with path.open("a") as out:
        out.write("The server is fired up and ready to roll!\n")
    assert log.new_stages()[-1] == READY
    assert log.ready and log.new_stages() == []
