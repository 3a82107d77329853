"""A draft that does not fit, such as one whose head is all zeros: the server says so wherever it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_adaptive.cli import main
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import DATA, PAGE
from sglang_adaptive.sglang_plugin.stages.reporting import PREFIX
from tests.browser import FOUND, Browser
from tests.engine import servers
from tests.engine.fault import write_plugin
from tests.engine.workload import Case, adaptive, run_together, wait_until
from tests.json_page import documented_paths

CONFIG = {"throughput": {"candidate_steps": list(servers.TIERS)}, "warm_up": False}
IMPATIENT = """
def register():
    from sglang_adaptive.runtime import alarms

    alarms.WINDOW_SECONDS, alarms.WINDOW_DRAFTS = 1.5, 1000
"""
SINCE = "almost no draft has been accepted since the start: "
TOLD = f"{SINCE}0 of the latest "
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuServer]:
    """A server of the tiny target and that draft, held at zero steps, once it has raised the alarm."""
    with drafting_with(
        tmp_path_factory.mktemp("headless"), lambda weights: weights["lm_head.weight"].zero_()
    ) as server:
        server.force_steps(0)
        # Then every second zero-step round shows the draft, instead of one in 29.
        server.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": 2}})
        wait_until(lambda: serve(server)["alarms"], "the alarm is raised")
        yield server


@contextmanager
def drafting_with(folder: Path, change: Callable[[Weights], object]) -> Iterator[CpuServer]:
    """Yield a server of the tiny target and its draft after *change* of the draft's weights."""
    draft = Path(shutil.copytree(models.draft_path(), folder / "draft"))
    weights = load_file(draft / "model.safetensors")
    change(weights)
    save_file(weights, draft / "model.safetensors", {"format": "pt"})
    plugin = write_plugin(folder / "plugin", "impatient:register", IMPATIENT)
    arguments = (*servers.speculation(*servers.adapting(folder, "drafting", CONFIG)), "--enable-metrics")
    # The last path counts.
    with servers.server(
        folder, "drafting", *arguments, "--speculative-draft-model-path", str(draft), **plugin
    ) as server:
        yield server


def shuffle_vocabulary(weights: Weights) -> None:
    order = torch.randperm(len(weights["lm_head.weight"]), generator=torch.Generator().manual_seed(0))
    weights["lm_head.weight"] = weights["lm_head.weight"][order].clone()


def test_a_draft_of_another_vocabulary(tmp_path: Path) -> None:
    """SGLang loads it without a word."""
    with drafting_with(tmp_path, shuffle_vocabulary) as server:
        server.force_steps(1)
        wait_until(lambda: serve(server)["alarms"], "the alarm is raised")
        [alarm] = adaptive(server)["alarms"]
        assert alarm["words"].startswith(SINCE) and alarm["details"]["share"] < 0.02
        server.force_steps(None)
        before, after = (serve(server)["drafted_by_tier"] for _ in range(2))
        drafts = (str(steps) for steps in servers.TIERS)  # others are looked up
        assert sum(after.get(steps, 0) - before.get(steps, 0) for steps in drafts) < 200, "the policy drafts on"


def serve(server: CpuServer) -> dict[str, Any]:
    """Let 24 requests decode together; return the adaptive state after that."""
    run_together(server, [Case(prompt) for prompt in models.prompts("easy")[:24]])
    return adaptive(server)


def test_it_is_raised_though_nothing_is_drafted(headless: CpuServer) -> None:
    state = serve(headless)
    assert state["accepted_by_position"][0]["reached"] < 100, "only SGLang's warm-up drafted"
    assert [alarm["name"] for alarm in state["alarms"]] == ["acceptance"]
    lines = [line for line in headless.log_path.read_text().splitlines() if "adaptive: alarm" in line]
    assert len(lines) == 1 and f"adaptive: alarm, acceptance: {TOLD}" in lines[0]


def test_readers_tell_it(headless: CpuServer, capsys: pytest.CaptureFixture[str]) -> None:
    document = headless.get(DATA)
    [alarm] = document["ranks"][0]["alarms"]
    assert alarm["words"].startswith(TOLD) and alarm["details"]["accepted"] == 0 and documented_paths(document)
    assert main(["explain", "--url", headless.url]) == 0
    assert f"acceptance: {alarm['words']}." in capsys.readouterr().out
    assert main(["doctor", "--url", headless.url]) == 1
    told = capsys.readouterr().out
    assert f"problem  acceptance: {alarm['words']}\n" in told
    assert told.endswith("Verdict: 1 problem to fix: acceptance.\n")


def test_the_metric_follows(headless: CpuServer) -> None:
    def exposed() -> list[str]:
        return [line for line in headless.get("/metrics").splitlines() if line.startswith(f"{PREFIX}alarm{{")]

    [series] = wait_until(lambda: [line for line in exposed() if line.endswith(" 1.0")], "SGLang updates its metrics")
    assert 'name="acceptance"' in series and len(exposed()) == 1


@pytest.mark.skipif(FOUND is None, reason="no Chromium here; Debian's package is chromium")
def test_the_page_shows_it(headless: CpuServer) -> None:
    with Browser() as browser:
        browser.open(headless.url + PAGE)
        browser.until("!byId('content').hidden", "the page has data")
        words = headless.get(DATA)["ranks"][0]["alarms"][0]["words"]
        name, since, told = browser.value("[...byId('alarms-table').rows[1].cells].map((cell) => cell.innerText)")
        assert (name, told.lower()) == ("acceptance", f"{words}.".lower())
        assert since == "now" or since.endswith(" ago")
        browser.until("(paused || byId('pause').click(), paused && !asking)", "the page is paused")
        browser.value("drawAlarms([{dp_rank: 0}, {...answer.ranks[0], dp_rank: 1}], answer.time)")
        rows = "[...byId('alarms-table').rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
        heads, cells = browser.value(rows)
        assert heads == ["Alarm", "Replica", "Since", "What was seen"] and cells[:2] == ["acceptance", "1"]
        browser.value("drawAlarms([{dp_rank: 0, alarms: []}], answer.time)")
        assert browser.value("byId('alarms').hidden")
