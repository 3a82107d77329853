"""Drafts that lookups would get accepted: a server's count matches a replay of its requests' tokens."""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lookups.lookup import Text
from sglang_adaptive.lookups.tally import Tally
from tests.engine.workload import Case, counted_lookups, run_together, tokens, wait_until_idle

COUNTS = ("requests", "rounds", "tokens", "run_tokens")


def test_the_count_agrees_with_a_replay_of_the_tokens(ema: CpuServer, easy: list[str], hard: list[str]) -> None:
    prompts = [tokens(ema, text) for text in (*easy[:3], *hard[:3])]
    prompts.append(prompts[0] + prompts[1] + prompts[0][: len(prompts[0]) // 2])  # a prompt that copies itself
    cases = [Case(tuple(prompt), max_new_tokens=40 + at) for at, prompt in enumerate(prompts)]
    wait_until_idle(ema)
    before = counted_lookups(ema)
    answers = [*run_together(ema, cases), cases[-1].whole(ema)]
    replayed = Tally()
    for prompt, answer in zip([*prompts, prompts[-1]], answers, strict=True):
        replayed += Tally.of(Text(prompt + answer["output_ids"], len(prompt)).rounds())
    after = counted_lookups(ema)
    expected = replayed.as_dict()
    assert {key: after[key] - before[key] for key in COUNTS} == {key: expected[key] for key in COUNTS}
    for now, then, row in zip(after["by_match"], before["by_match"], expected["by_match"], strict=True):
        assert {key: now[key] - then[key] for key in ("rounds", "tokens")} == {
            key: row[key] for key in ("rounds", "tokens")
        }
    assert expected["rounds"] < expected["tokens"], "nothing was looked up"
    assert (after["left_out"], after["error"]) == (0, None)
