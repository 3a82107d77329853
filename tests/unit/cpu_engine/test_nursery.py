"""What a child of the nursery sees and can do, compared with a fresh Python process; no SGLang in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.workload import has_ended, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the nursery is for Linux")

STARTER = """
import json, multiprocessing, os, signal, sys, time
from sglang_adaptive.lab.cpu_engine.start import open_nursery

def look(queue, word):
    imported = "colorsys" in sys.modules
    import colorsys
    queue.put({
        "word": word, "said": os.environ.get("SAID"), "gone": "GONE" in os.environ, "imported": imported,
        "marked": hasattr(colorsys, "mark"), "parent": multiprocessing.parent_process().pid,
        "quit": signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL,
    })

def look_below(*given, **more):
    child = multiprocessing.Process(target=look, args=given, kwargs=more)
    child.start()
    child.join()

def fail():
    os.kill(os.getppid(), signal.SIGQUIT)
    time.sleep(60)

def wait():
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # as SGLang's children do
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background job begins without it
    os.environ["GONE"] = "before"
    if sys.argv[1] == "nursery":
        open_nursery(["colorsys"])
    import colorsys
    colorsys.mark = True
    multiprocessing.set_start_method("spawn", force=True)
    os.environ["SAID"] = "later"
    del os.environ["GONE"]
    if sys.argv[2].startswith("look"):
        queue = multiprocessing.Queue()
        child = multiprocessing.Process(target=globals()[sys.argv[2]], args=(queue,), kwargs={"word": "hello"})
        child.start()
        seen = queue.get()
        child.join()
        bad = multiprocessing.Process(target=sys.exit, args=(7,))
        bad.start()
        bad.join()
        parent = seen["parent"] == (os.getpid() if sys.argv[2] == "look" else child.pid)
        print(json.dumps({**seen, "parent": parent, "codes": [child.exitcode, bad.exitcode]}))
    else:
        signal.signal(signal.SIGQUIT, lambda *_: os._exit(3))  # what `fail` sends
        child = multiprocessing.Process(target=globals()[sys.argv[2]])
        child.start()
        child.join()
"""


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    scratch = tmp_path / ("a folder whose name leaves no room for that of a socket" * 2)
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    script = tmp_path / "starter.py"
    script.write_text(STARTER)
    return [sys.executable, str(script)]


def looked(starter: list[str], how: str, what: str) -> dict[str, Any]:
    done = subprocess.run([*starter, how, what], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", ["look", "look_below"], ids=["a child", "a child's child"])
def test_a_child_sees_what_a_new_python_would_see_and_has_the_modules(starter: list[str], what: str) -> None:
    spawned, forked = looked(starter, "spawn", what), looked(starter, "nursery", what)
    assert spawned["imported"] is False and forked["imported"] is True
    assert {**forked, "imported": False} == spawned
    told = {"word": "hello", "said": "later", "gone": False, "marked": False, "imported": False}
    assert spawned == {**told, "parent": True, "quit": True, "codes": [0, 7]}


@pytest.mark.parametrize("how", ["spawn", "nursery"])
def test_a_child_that_signals_its_parent_reaches_the_first_process(starter: list[str], how: str) -> None:
    process = subprocess.Popen([*starter, how, "fail"], start_new_session=True)
    try:
        assert process.wait() == 3
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["spawn", "nursery"])
def test_children_end_with_the_first_process(starter: list[str], how: str) -> None:
    process = subprocess.Popen([*starter, how, "wait"], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    wait_until(lambda: has_ended(child), "the child ended")
