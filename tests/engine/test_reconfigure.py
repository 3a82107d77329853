"""A new configuration while the server runs: by request, by SIGHUP and by a watched file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import ADMIN_KEY, TIERS, rank_rounds
from tests.engine.test_throughput_served import require_alike
from tests.engine.workload import Case, adaptive, grown, require_whole_pool, rounds, run, wait_until

SHALLOW = {"1": {"candidate_steps": [1]}}
DEEP = {"1": {"candidate_steps": [7]}}
THROUGHPUT = {"throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 16}}
CHANGES = 10
"""Changes during which requests run; requests continue until this many happened."""


@contextlib.contextmanager
def kept(server: CpuServer) -> Iterator[dict[str, Any]]:
    """Yield the active configuration, and restore it afterwards."""
    before: dict[str, Any] = adaptive(server)["config"]
    try:
        yield before
    finally:
        server.configure(before)


@contextlib.contextmanager
def changing(server: Client, configs: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Apply each of *configs* in turn, some rounds apart, until the block ends."""
    done, applied = threading.Event(), [0]

    def change() -> None:
        for config in itertools.cycle(configs):
            if done.is_set():
                return
            server.configure(config)
            applied[0] += 1
            done.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(change)
        try:
            yield applied
        finally:
            done.set()
            work.result()


def audits(server: CpuServer) -> list[str]:
    return [line for line in server.log_path.read_text().splitlines() if "adaptive: configuration changed by" in line]


def put(file: Path, content: str) -> None:
    """Replace *file* atomically: a server that watches it never reads a part."""
    new = file.with_suffix(".new")
    new.write_text(content)
    new.replace(file)


def test_change_takes_effect_and_is_told(ema: CpuServer, easy: list[str]) -> None:
    with kept(ema) as before:
        counted = adaptive(ema)["rounds_by_tier"].get("1", 0)
        assert ema.configure(SHALLOW) == [True]
        meta = Case(easy[0], max_new_tokens=16).whole(ema)["meta_info"]
        found = adaptive(ema)
        assert found["rounds_by_tier"]["1"] - counted == meta["spec_verify_ct"]
        assert found["config"]["1"]["candidate_steps"] == [1] and "4" not in found["config"]
        assert found["config_changed"]["by"].startswith("127.0.0.1:")
        assert len(found["slots"]) == 1 and found["tiers"] == list(TIERS)
        (line,) = audits(ema)[-1:]
        assert f"changed by {found['config_changed']['by']}: " in line
        assert f"1.candidate_steps: {before['1']['candidate_steps']} -> [1]" in line and "-> none" in line

        assert ema.configure(THROUGHPUT) == [True]
        Case(easy[0], max_new_tokens=64).whole(ema)
        found = adaptive(ema)
        assert found["policy"] == "throughput" and found["config"]["throughput"]["sync_rounds"] == 16
        assert found["why"]["words"] and not found["degraded"]
        learnt = found["acceptance"][0]
        assert ema.configure({"throughput": {"candidate_steps": [1, 3]}}) == [True]
        assert adaptive(ema)["acceptance"][0]["probability"] == pytest.approx(learnt["probability"], abs=0.05)
        assert adaptive(ema)["acceptance"][0]["trials"] >= learnt["trials"]  # rounds pending then are counted now
        assert {rate["steps"] for rate in adaptive(ema)["rates"]} == {1, 3}
        adopted = adaptive(ema)["acceptance"][0]["trials"]
        assert ema.configure({"throughput": {"candidate_steps": [1, 3], "sync_rounds": 48}}) == [True]
        assert adaptive(ema)["acceptance"][0]["trials"] == pytest.approx(adopted, rel=0.01)
    assert adaptive(ema)["config"] == before


def test_text_stays_the_same_while_the_configuration_changes_under_load(
    ema: CpuServer, easy: list[str], hard: list[str]
) -> None:
    cases = [Case(prompt) for prompt in (*easy[:3], *hard[:3])]
    ema.force_steps(0)
    without_drafts = run(ema, cases, at_once=6)
    ema.force_steps(None)
    counted = adaptive(ema)["rounds_by_tier"]

    def ran() -> set[str]:
        return set(grown(counted, adaptive(ema)["rounds_by_tier"]))

    with kept(ema), changing(ema, [SHALLOW, DEEP, THROUGHPUT]) as applied:
        while applied[0] < CHANGES or not {"1", "7"} <= ran():
            assert run(ema, cases, at_once=3) == without_drafts
    require_whole_pool(ema)
    assert not adaptive(ema)["degraded"]


def test_file_is_read_again_on_hangup_and_when_watched(ema: CpuServer, easy: list[str]) -> None:
    file = Path(ema.command[ema.command.index("--speculative-adaptive-config") + 1])
    original = file.read_text()
    assert ema.pid is not None

    def by_whom() -> str:
        changed: dict[str, Any] | None = adaptive(ema)["config_changed"]
        return "" if changed is None else changed["by"]

    def refusals() -> list[str]:
        return [
            line for line in ema.log_path.read_text().splitlines() if "the old configuration stays in force" in line
        ]

    with kept(ema):
        put(file, json.dumps({**SHALLOW, "watch": True}))
        os.kill(ema.pid, signal.SIGHUP)
        wait_until(lambda: by_whom() == "SIGHUP", "the file was read on SIGHUP")
        assert adaptive(ema)["config"]["1"]["candidate_steps"] == [1]

        put(file, '{"1": {"candidate_steps": [1,')  # half of a file, or a mistake
        wait_until(refusals, "the bad file was refused")
        assert len(refusals()) == 1 and "broken JSON at line 1" in refusals()[0] and "watch: " in refusals()[0]
        assert adaptive(ema)["config"]["1"]["candidate_steps"] == [1]

        put(file, json.dumps(DEEP))  # and no longer watched
        wait_until(lambda: by_whom() == "watch", "the changed file was read")
        before = rounds(ema)
        Case(easy[0], max_new_tokens=8).whole(ema)
        assert rounds(ema) > before and adaptive(ema)["current_steps"] == 7
        put(file, original)


CHANGES_ON_TREE: dict[str, Callable[[Client], Any]] = {
    "configuration": lambda client: client.configure(SHALLOW),
    "steps": lambda client: client.force_steps(1),
    "release": lambda client: client.force_steps(None),
}


@pytest.mark.parametrize("change", CHANGES_ON_TREE)
def test_nobody_without_the_administrator_s_key_changes_anything(tree: CpuServer, change: str) -> None:
    for stranger in (tree, Client.from_url(tree.url, api_key="wrong")):
        with pytest.raises(RequestError, match=r"401 .*Unauthorized") as refusal:
            CHANGES_ON_TREE[change](stranger)
        assert "adaptive" not in str(refusal.value), "the key is checked before the value"
    with pytest.raises(RequestError, match=r"400 .*adaptive speculation is off: speculative_eagle_topk=4"):
        CHANGES_ON_TREE[change](Client.from_url(tree.url, api_key=ADMIN_KEY))


def test_every_rank_changes_at_the_same_round(two_ranks: CpuServer, easy: list[str], hard: list[str]) -> None:
    cases = [Case(prompt, max_new_tokens=40) for prompt in (*easy[:2], *hard[:2])]
    two_ranks.force_steps(0)
    without_drafts = run(two_ranks, cases, at_once=3)
    two_ranks.force_steps(None)
    begun = len(rank_rounds(two_ranks, 0))
    shallow = {"1": {"candidate_steps": [1, 2]}}
    with kept(two_ranks), changing(two_ranks, [DEEP, {"throughput": {"sync_rounds": 4}}, shallow]) as applied:
        while applied[0] < CHANGES or len({line.split()[1] for line in rank_rounds(two_ranks, 0)[begun:]}) < 2:
            assert run(two_ranks, cases, at_once=3) == without_drafts
    require_alike(two_ranks)
    assert adaptive(two_ranks)["degraded"] is False and adaptive(two_ranks)["policy"] == "throughput"
