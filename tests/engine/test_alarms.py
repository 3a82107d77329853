"""A draft that does not fit, such as one whose head is all zeros: the server says so wherever it is read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

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
TOLD = "almost no draft has been accepted since the start: 0 of the latest "


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuServer]:
    """A server of the tiny target and that draft, held at zero steps, once it has raised the alarm."""
    folder = tmp_path_factory.mktemp("headless")
    draft = Path(shutil.copytree(models.draft_path(), folder / "draft"))
    weights = load_file(draft / "model.safetensors")
    weights["lm_head.weight"].zero_()
    save_file(weights, draft / "model.safetensors", {"format": "pt"})
    plugin = write_plugin(folder / "plugin", "impatient:register", IMPATIENT)
    arguments = servers.speculation(*servers.adapting(folder, "headless", CONFIG))
    more = ("--enable-metrics", "--speculative-draft-model-path", str(draft))  # the last path counts
    with servers.server(folder, "headless", *arguments, *more, **plugin) as server:
        server.force_steps(0)
        # Then every second zero-step round shows the draft, instead of one in 29.
        server.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": 2}})
        wait_until(lambda: serve(server)["alarms"], "the alarm is raised")
        yield server


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
    document = headless.get(DATA)
    [alarm] = document["ranks"][0]["alarms"]
    assert alarm["words"].startswith(TOLD) and alarm["details"]["accepted"] == 0 and documented_paths(document)


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
