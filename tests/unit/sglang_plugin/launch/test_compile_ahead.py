"""Compiling ahead: FlashInfer's real specifications in a real process, with compilers that hang or are missing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_adaptive.serve_cpu import STAND_IN
from sglang_adaptive.sglang_plugin.launch import compile_ahead
from sglang_adaptive.sglang_plugin.notes import NOTE
from tests import forked_servers

SETUP = compile_ahead.Setup("bfloat16", "bfloat16", 256, 64, 2, flashinfer=False, selects=True)
IMPORTABLE = {"PYTHONPATH": str(forked_servers.ROOT)}
LAUNCHER = f"""
import sys, time
from sglang_adaptive.sglang_plugin.launch.compile_ahead import Setup, start
compiler = start({SETUP})
print(compiler.pid, flush=True)
print(compiler.wait(600) == 0, flush=True)
"""


def test_a_failure_costs_the_others_nothing_and_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    compiled: list[str] = []

    def broken() -> None:
        raise RuntimeError("ninja failed\n\nx.cu(3): error: no such\nmore")

    wanted = [("broken", broken), ("worse", broken), ("right", lambda: compiled.append("right"))]
    assert not compile_ahead.compile_all(wanted)
    assert compiled == ["right"]
    assert caplog.messages == ["adaptive: could not compile broken, worse ahead: RuntimeError: x.cu(3): error: no such"]
    assert compile_ahead.compile_all(wanted[2:])
    assert len(caplog.messages) == 1  # instant results are not logged


def test_a_server_that_does_not_adapt_or_has_no_gpu_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "start", lambda setup: pytest.fail("started"))
    for note, device in (({"reason": "no draft"}, "cuda"), ({"reason": None}, "cpu")):
        compile_ahead.begin(SimpleNamespace(device=device, **{NOTE: note}))
    compile_ahead.begin(SimpleNamespace(device="cuda"))
    assert compile_ahead.started is None


def test_a_host_without_a_cache_says_so_in_one_line(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("")  # a file where a folder must be created; a superuser may write to any folder
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHER],
        env={**os.environ, **_on_hopper(cache, cuda=tmp_path / "nothing"), **IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.stdout.split()[1:] == ["False"]
    [line] = [line for line in ended.stderr.splitlines() if "adaptive:" in line]
    assert "no further module is compiled ahead" in line


def test_a_host_without_a_compiler_says_so_in_one_line(tmp_path: Path) -> None:
    here = _on_hopper(tmp_path / "cache", cuda=tmp_path / "nothing")
    before = f"import os, sys; os.environ |= {here!r}; sys.path.remove({str(STAND_IN)!r})"
    ended = forked_servers.launch([compile_ahead.__name__, json.dumps(dataclasses.asdict(SETUP))], before)
    assert ended.code == 1
    [line] = [line for line in ended.output.splitlines() if "adaptive:" in line]
    assert "could not compile sampling, topk" in line


def test_flashinfers_prefills_after_a_cached_prefix_have_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashinfer import jit, utils

    monkeypatch.setattr(utils, "determine_attention_backend", lambda *_: "fa2")
    monkeypatch.setattr(jit.core.current_compilation_context, "TARGET_CUDA_ARCHS", {(9, "0a")})
    setup = dataclasses.replace(SETUP, flashinfer=True)
    assert "cascade" in [name for name, _ in compile_ahead.jobs(setup)]


STARTING = """
import subprocess
from sglang_adaptive.sglang_plugin.launch import compile_ahead

def start(own_group):
    for _ in range(20):
        subprocess.run(["sh", "-c", "sleep 600 & sleep 600"], process_group=0 if own_group else None)

compile_ahead._end_with_the_launcher()
print("ready", flush=True)
compile_ahead.compile_all([(f"job {number}", lambda number=number: start(number % 2)) for number in range(8)])
"""
"""A compiler whose jobs start further processes while it ends."""


def test_nothing_that_is_started_meanwhile_outlives_the_launcher() -> None:
    begin = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STARTING!r}], start_new_session=True)"
    launcher = subprocess.Popen([sys.executable, "-c", begin], env={**os.environ, **IMPORTABLE}, stdout=subprocess.PIPE)
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        launcher.kill()
        assert launcher.stdout.read() == b"", "it ends once no process has it open"
    finally:
        launcher.kill()
        launcher.wait()


def test_the_server_does_not_wait_and_samples_once_the_kernels_are_there() -> None:
    from sglang_adaptive.sglang_plugin.launch import warm_up

    ended, sampled = threading.Event(), threading.Event()
    server = warm_up._Server.__new__(warm_up._Server)
    server._generate = lambda *given: sampled.set()  # type: ignore[method-assign]
    compiler = SimpleNamespace(poll=lambda: None, wait=lambda seconds: not ended.wait(60))
    failed, done = (SimpleNamespace(poll=lambda code=code: code) for code in (1, 0))
    exact, inexact = ({"adaptive": {"off": off}} for off in ({}, {"exact": "it drafts blocks"}))
    server._needs_compiler = True
    assert not server._can_sample([exact], compiler)  # type: ignore[arg-type]
    assert not sampled.is_set()
    ended.set()
    assert sampled.wait(60)
    assert not server._can_sample([exact], failed)  # type: ignore[arg-type]
    assert server._can_sample([exact], done) and server._can_sample([exact], None)  # type: ignore[arg-type]
    server._needs_compiler = False
    for unfinished in (compiler, failed):
        assert server._can_sample([exact], unfinished)  # type: ignore[arg-type]
        assert not server._can_sample([exact, inexact], unfinished)  # type: ignore[arg-type]


def _on_hopper(cache: Path, cuda: Path) -> dict[str, str]:
    where = {"FLASHINFER_WORKSPACE_BASE": str(cache), "CUDA_HOME": str(cuda)}
    return {**where, "FLASHINFER_CUDA_ARCH_LIST": "9.0a"}
