"""A server that is told to end (TERM): nothing of this package holds it, and what it has learned is on disk."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.policy.profile import loads_profile
from tests.engine import servers
from tests.engine.servers import TIERS
from tests.engine.workload import Case, Output, adaptive, run, wait_until

SECONDS = 20.0
"""A container has 30. SGLang looks every five seconds whether it was told to end, and then whether requests run."""
FEW = ("--max-running-requests", "8")
LONG = 800
"""New tokens of a request that still runs when the server is told to end."""


@contextmanager
def launched(folder: Path, *more: str, **config: Any) -> Iterator[CpuServer]:
    """Yield a server that keeps its profile and its trace in *folder*, and is launched."""
    learning = {"throughput": {"candidate_steps": list(TIERS), "profile_dir": str(folder / "profiles")}, "watch": True}
    config = {"warm_up": False, "trace": {"file": str(folder / "rounds.trace")}, **learning, **config}
    made = servers.server(folder, "ending", *servers.speculation(*servers.adapting(folder, "ending", config)), *more)
    try:
        made.launch()
        yield made
    finally:
        made.stop()


def end(server: CpuServer) -> None:
    """Send TERM, and wait for the end; fail when it comes too late or is not a regular one."""
    assert server._process is not None
    begun = time.monotonic()
    server._process.send_signal(signal.SIGTERM)
    assert server._process.wait(SECONDS) == 0
    print(f"ended after {time.monotonic() - begun:.1f} s")


def test_audits_stop_and_a_running_request_comes_to_its_end(tmp_path: Path, easy: list[str], hard: list[str]) -> None:
    """As long as audits go on, SGLang waits for the next one; eight of 150 tokens held it for 97 s."""
    with launched(tmp_path, *FEW, audit={"share": 1.0}) as server, ThreadPoolExecutor(1) as pool:
        wait_until(server.poll, "it is ready")
        prompts = (easy + hard)[: int(FEW[1])]
        run(server, [Case(prompt, 300) for prompt in prompts], at_once=len(prompts))
        asked = pool.submit(run, server, [Case(easy[0], LONG)], 1)
        wait_until(lambda: server.get("/v1/loads")["loads"][0]["num_running_reqs"], "it runs")
        server.force_steps(TIERS[-1], 3600)
        assert adaptive(server)["audit"]["waiting"] > 4
        end(server)
        (answer,) = asked.result()
    assert isinstance(answer, Output) and len(answer.ids) == LONG
    (file,) = (tmp_path / "profiles").glob("*.json")
    assert sum(cell.rounds or 0 for cell in loads_profile(file.read_text(), file.name).cells) > 0
    drafted = [line for line in (tmp_path / "rounds.trace").read_text().splitlines() if line.startswith("7 ")]
    assert sum(int(line.split()[1], 36) + 1 for line in drafted) > 2 * LONG / 3, "the trace has the last rounds"


def test_the_warm_up_stops(tmp_path: Path) -> None:
    with launched(tmp_path, "--max-running-requests", "64", warm_up=True) as server:
        wait_until(lambda: "POST /generate" in server.log_path.read_text(), "the warm-up has run a batch")
        end(server)
        told = server.log_path.read_text()
    assert "adaptive: the warm-up stops, because the server ends" in told and "fired up" not in told
