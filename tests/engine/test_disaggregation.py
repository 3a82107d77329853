"""An adaptive decode server behind a prefill server: mooncake moves the keys and values over TCP.

Needs mooncake, which SGLang does not install (``pip install mooncake-transfer-engine-non-cuda``), and its libibverbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer, free_port
from tests.engine.apart import Apart
from tests.engine.servers import TIERS, adapting, server, speculation
from tests.engine.workload import (
    Case,
    Expected,
    adaptive,
    grown,
    require_whole_pool,
    rotating_depth,
    rounds,
    wait_until,
)

pytest.importorskip("mooncake.engine", reason="mooncake is not installed", exc_type=ImportError)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart[CpuServer]]:
    folder, port = tmp_path_factory.mktemp("apart"), free_port()

    def made(name: str, *more: str) -> CpuServer:
        config = {"throughput": {"candidate_steps": list(TIERS)}}
        words = (*speculation(*adapting(folder, name, config)), "--max-total-tokens", "8192")
        words += ("--disaggregation-mode", name, "--disaggregation-bootstrap-port", str(port))
        return server(folder, name, *words, *more, MOONCAKE_PROTOCOL="tcp")

    # SGLang would keep what it retracts in pinned memory.
    with (
        made("prefill") as prefill,
        made("decode", "--disaggregation-decode-retraction-backup", "cpu_tensor") as decode,
    ):
        yield Apart(prefill, decode, port)


def test_only_the_decode_server_adapts(apart: Apart[CpuServer]) -> None:
    assert adaptive(apart.decode)["active"] and set(adaptive(apart.decode)["tiers"]) == set(TIERS)
    assert "a prefill server drafts nothing" in Path(apart.prefill.log_path).read_text()


@pytest.mark.parametrize("steps", TIERS)
def test_outputs_at_every_depth(apart: Apart[CpuServer], expected: Expected, cases: list[Case], steps: int) -> None:
    apart.decode.force_steps(steps)
    before = adaptive(apart.decode)["rounds_by_tier"]
    assert apart.run(cases) == expected(cases)
    assert set(grown(before, adaptive(apart.decode)["rounds_by_tier"])) == {str(steps)}
    apart.decode.force_steps(None)
    require_whole_pool(apart.decode)


def test_outputs_while_the_depth_switches(apart: Apart[CpuServer], expected: Expected, cases: list[Case]) -> None:
    before = adaptive(apart.decode)["switches"]
    with rotating_depth(apart.decode):
        for _ in range(3):
            assert apart.run(cases) == expected(cases)
    assert adaptive(apart.decode)["switches"] >= before + 10
    assert apart.run(cases) == expected(cases)  # by the policy


def test_aborted_requests_leave_nothing_behind(apart: Apart[CpuServer], easy: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        before = rounds(apart.decode)
        answer = apart.ask(Case(easy[0], max_new_tokens=4000), pool, rid="runs")
        wait_until(lambda: rounds(apart.decode) > before + 3, "the request decodes")
        apart.decode.abort("runs")
        assert answer.result()["meta_info"]["finish_reason"]["type"] == "abort"
    require_whole_pool(apart.decode)


@pytest.mark.usefixtures("plain")  # the other tests need it, and this is the last one
def test_a_prefill_server_that_ends_is_told_in_one_line(apart: Apart[CpuServer], easy: list[str]) -> None:
    apart.prefill.stop()
    with ThreadPoolExecutor(2) as pool, pytest.raises(RequestError, match="Lost connection with prefill instance"):
        apart.ask(Case(easy[0]), pool).result()
    assert "Traceback" not in Path(apart.decode.log_path).read_text()
