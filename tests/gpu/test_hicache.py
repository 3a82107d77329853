"""A hierarchical cache on a GPU: prompts that come back from the host's memory keep their text and their drafts.

The pool holds a third of the prompts. SGLang copies each prompt to the host, target and draft, and reads it back when
it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.workload import Case, adaptive, answers, rotating_depth
from tests.gpu.servers import CACHE, TIERS, Line, serving_together, tiny_pair

PROMPTS, LENGTH, NEW = 12, 640, 96
HOST = (CACHE, "--page-size", "64", "--max-total-tokens", "3072", "--hicache-ratio", "8")
LEAST = 0.95
"""Of the tokens per round: a prompt that is read back ends in a shorter prefill, which rounds differently."""


def cases() -> list[Case]:
    """Return prompts that begin differently."""
    written = models.prompts("easy")
    texts = ["".join([*written[number:], *written[:number]])[:LENGTH] for number in range(PROMPTS)]
    return [Case(text, max_new_tokens=NEW) for text in texts]


def from_host(found: list[dict[str, Any]]) -> int:
    """Return the prompt tokens that were read from the host's memory."""
    return sum((answer["meta_info"].get("cached_tokens_details") or {}).get("host", 0) for answer in found)


def tokens_a_round(found: list[dict[str, Any]]) -> float:
    metas = [answer["meta_info"] for answer in found]
    return sum(meta["completion_tokens"] for meta in metas) / sum(meta["spec_verify_ct"] for meta in metas)


def test_prompts_that_come_back_keep_text_and_acceptance(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    asked = cases()
    line = Line(tmp_path / "server.log", tiny_pair(tmp_path, "fa3"), "fa3", TIERS, extra=HOST)
    with serving_together(line) as (client,):
        client.force_steps(0)
        plain = [answer["output_ids"] for answer in answers(client, asked, 1)]

        def same(found: list[dict[str, Any]]) -> int:
            return sum(one["output_ids"] == ids for one, ids in zip(found, plain, strict=True))

        for steps in TIERS:
            client.force_steps(steps)
            client.flush_cache()
            computed, back = answers(client, asked, 1), answers(client, asked, 1)
            lengths = [tokens_a_round(computed), tokens_a_round(back)]
            told = {"from_host": from_host(back), "same": [same(computed), same(back)], "tokens_a_round": lengths}
            record_property(f"{steps} steps", told)
            print(f"{steps} steps: {told}")
            assert from_host(computed) == 0 and from_host(back) > 0.7 * PROMPTS * LENGTH
            assert min(told["same"]) >= PROMPTS - 1, "more than a tie of bfloat16"
            assert lengths[1] >= LEAST * lengths[0]
        begun = adaptive(client)["switches"]
        with rotating_depth(client):
            found = answers(client, 2 * asked, 2)
        record_property("switching", {"from_host": from_host(found), "same": same(found[:PROMPTS])})
        assert from_host(found) > 0.5 * PROMPTS * LENGTH
        assert same(found[:PROMPTS]) >= PROMPTS - 2 and same(found[PROMPTS:]) >= PROMPTS - 2
        state = adaptive(client)
        assert state["switches"] > begun + len(TIERS) and not state["degraded"]
