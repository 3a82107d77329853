"""On GPUs, an adaptive decode server behind a prefill server: nixl moves the keys and values.

Needs nixl, which SGLang does not install (``pip install nixl``). With two GPUs, each server has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import free_port
from tests.engine.apart import Apart
from tests.engine.workload import Case, adaptive, grown, rotating_depth, rounds, run, wait_until
from tests.gpu.servers import CASES, TIERS, Line, serving_together, tiny_pair

pytest.importorskip("nixl", reason="nixl is not installed", exc_type=ImportError)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Apart[Client]]]:
    """A server of both, and the two apart."""
    import torch

    folder, port = tmp_path_factory.mktemp("apart"), free_port()
    pair = tiny_pair(folder, "fa3")
    more = ("--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(port))

    def line(name: str, *extra: str) -> Line:
        return Line(folder / f"{name}.log", pair, "fa3", TIERS, extra=extra)

    with serving_together(
        line("whole"),
        line("prefill", "--disaggregation-mode", "prefill", *more),
        line("decode", "--disaggregation-mode", "decode", *more, "--base-gpu-id", str(torch.cuda.device_count() - 1)),
    ) as (whole, prefill, decode):
        yield whole, Apart(prefill, decode, port)


@pytest.mark.parametrize("steps", TIERS)
def test_texts_are_those_of_one_server(servers: tuple[Client, Apart[Client]], steps: int) -> None:
    whole, apart = servers
    for client in (whole, apart.decode):
        client.force_steps(steps)
    before = adaptive(apart.decode)["rounds_by_tier"]
    # One at a time: in another batch, bf16 adds in another order.
    assert [apart.run([case])[0] for case in CASES] == run(whole, CASES, at_once=1)
    assert set(grown(before, adaptive(apart.decode)["rounds_by_tier"])) == {str(steps)}
    apart.decode.force_steps(None)


def test_the_depth_switches_and_an_abort_ends_one_request(servers: tuple[Client, Apart[Client]]) -> None:
    _, apart = servers
    before = adaptive(apart.decode)["switches"]
    with rotating_depth(apart.decode):
        for _ in range(3):
            assert [output.completion_tokens for output in apart.run(CASES)] == [96] * len(CASES)
    assert adaptive(apart.decode)["switches"] >= before + 10
    with ThreadPoolExecutor(2) as pool:
        ran = rounds(apart.decode)
        answer = apart.ask(Case("In the", max_new_tokens=6000), pool, rid="runs")
        wait_until(lambda: rounds(apart.decode) > ran + 3, "the request decodes")
        apart.decode.abort("runs")
        assert answer.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert adaptive(apart.decode)["degraded"] is False
