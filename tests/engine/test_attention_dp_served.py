"""Two ranks of attention DP with separate requests: one depth per round, and round times by the largest batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS, rank_rounds
from tests.engine.workload import replica_states, wait_until

LOADS = ((4, 1), (1, 6), (0, 2))
TOKENS = 12
ENDLESS = 8000
"""More tokens than any client waits for; the context has 8192."""


def body(rank: int, requests: int, tokens: int, **more: Any) -> dict[str, Any]:
    draw = random.Random(rank)
    prompts = [[draw.randrange(16, 500) for _ in range(12)] for _ in range(requests)]
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}
    return {"input_ids": prompts, "sampling_params": sampling, "routed_dp_rank": rank}


def ask(server: CpuServer, rank: int, requests: int, tokens: int = TOKENS, **more: Any) -> list[list[int]]:
    """Return the greedy outputs of *requests* requests to one rank, sent at once, with *more* sampling parameters."""
    return [answer["output_ids"] for answer in server.post("/generate", body(rank, requests, tokens, **more))]


def asked(server: CpuServer, load: Sequence[int], **more: Any) -> list[list[list[int]]]:
    """Return the outputs of both ranks under simultaneous load."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: ask(server, *pair, **more) if pair[1] else [], enumerate(load)))


def texts(server: CpuServer, loads: Sequence[Sequence[int]], **more: Any) -> list[Any]:
    """Return the outputs under each load by the policy; fail if they differ from those at the ends of the depths."""
    held = []
    for depth in (0, TIERS[-1], None):
        server.force_steps(depth)
        held.append([asked(server, load, **more) for load in loads])
    assert held[0] == held[1] == held[2]
    return held[2]


@contextmanager
def decoding(server: CpuServer, rank: int) -> Iterator[None]:
    """Keep one request decoding on a rank for the whole block."""
    before = len(rank_rounds(server, rank))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/generate", body(rank, 1, ENDLESS) | {"rid": ["endless"]})
        wait_until(lambda: any(int(line.split()[0]) for line in rank_rounds(server, rank)[before:]), "the rank decodes")
        try:
            yield
        finally:
            server.abort("endless")
        assert answer.result()[0]["meta_info"]["finish_reason"]["type"] == "abort"


def test_both_ranks_run_the_same_depths_and_text_does_not_depend_on_them(attention_dp: CpuServer) -> None:
    texts(attention_dp, LOADS)
    started = len(rank_rounds(attention_dp, 0))
    wait_until(lambda: len(rank_rounds(attention_dp, 1)) >= started, "rank 1 has started as many rounds")
    first, second = ([line.split()[1] for line in rank_rounds(attention_dp, rank)[:started]] for rank in (0, 1))
    assert first == second and set(first) >= {"0", "7"} and started > 50
    assert [state["degraded"] for state in replica_states(attention_dp)] == [False, False]


def test_penalties_count_every_token_at_any_depth(attention_dp: CpuServer) -> None:
    load = (2, 1)
    (penalized,) = texts(attention_dp, [load], frequency_penalty=1.5, repetition_penalty=1.2)
    assert penalized != asked(attention_dp, load), "they change what follows"


def test_round_times_are_those_of_the_largest_batch(attention_dp: CpuServer) -> None:
    """Continues until all four requests of the other rank have run together for some rounds."""
    asked(attention_dp, (4, 1))
    while 4 not in {cell["batch_size"] for cell in replica_states(attention_dp)[1]["round_times"]}:
        asked(attention_dp, (4, 1))


def test_a_configuration_reaches_both_ranks_while_one_decodes(attention_dp: CpuServer) -> None:
    options = {"candidate_steps": list(TIERS), "shrinkage": 2.0}
    with decoding(attention_dp, 0):
        assert set(attention_dp.configure({"throughput": options})) == {True}
    assert [state["config"]["throughput"]["shrinkage"] for state in replica_states(attention_dp)] == [2.0, 2.0]
    assert [len(outputs) for outputs in asked(attention_dp, (1, 2))] == [1, 2]


def test_a_prefill_of_the_other_rank_keeps_rounds_from_being_timed(attention_dp: CpuServer) -> None:
    attention_dp.force_steps(1)
    ask(attention_dp, 0, 1, 4)

    def ran_and_timed() -> tuple[int, int]:
        state = replica_states(attention_dp)[0]
        timed = sum(cell["rounds"] for cell in state["round_times"] if cell["steps"] == 1)
        return state["rounds_by_tier"]["1"], timed

    def go_on(rounds: int) -> int:
        """Wait for *rounds* more rounds on rank 0; return how many rounds in total could not be timed."""
        at, _ = ran_and_timed()
        wait_until(lambda: ran_and_timed()[0] > at + rounds, "rank 0 decodes")
        ran, timed = ran_and_timed()
        return ran - timed

    prefills = 8
    with decoding(attention_dp, 0):
        before = untimed = go_on(4)
        for _ in range(prefills):
            ask(attention_dp, 1, 1, 1)
            untimed = go_on(4)
    assert untimed - before >= prefills
    attention_dp.force_steps(None)
