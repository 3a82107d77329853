"""Lookups on a GPU: kernels match the definition, and outputs from graphs match those without drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sglang_adaptive.policy.throughput.lookups import KINDS
from tests.engine.workload import Case, adaptive, answers
from tests.gpu.servers import STARTS, Line, serving_together, tiny_pair
from tests.lookup_kernel_checks import check

CONFIG = {"throughput": {"candidate_steps": [0, 1, 3, 7], "lookup": True}}
TAILS = (40, 36, 32, 28)
"""Tokens of a third copy with which prompts end."""
AT_ONCE = (1, *sorted(sizes[-1] for sizes in KINDS.values()))
"""One request, and the most of each kind."""
ROOM = ("--cuda-graph-max-bs-decode", str(AT_ONCE[-1]), "--max-running-requests", str(AT_ONCE[-1]))


def test_kernels_look_up_what_the_definition_does() -> None:
    assert check("cuda") > 50


def test_texts_are_those_without_drafts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Prompts contain an answer twice: at zero steps, held at each kind of lookups of the batch size, by the policy."""
    line = Line(tmp_path / "lookups.log", tiny_pair(tmp_path, "fa3"), "fa3", CONFIG, extra=ROOM)
    with serving_together(line) as (client,):
        client.force_steps(0)
        written = answers(client, [Case(f"{start} the", max_new_tokens=120) for start in STARTS], 4)
        texts = [tuple(one["output_ids"]) for one in written]
        every = [Case((*text, *text, *text[:tail]), max_new_tokens=160) for tail in TAILS for text in texts]
        for at_once in AT_ONCE:
            cases = every[: max(len(texts), at_once)]
            client.force_steps(0)
            plain = [one["output_ids"] for one in answers(client, cases, at_once)]
            for steps in (*(drafts for drafts, sizes in KINDS.items() if at_once in sizes), None):
                client.force_steps(steps)
                found = answers(client, cases, at_once)
                same = sum(one["output_ids"] == text for one, text in zip(found, plain, strict=True))
                rounds = sum(one["meta_info"]["spec_verify_ct"] for one in found)
                record_property(f"{steps} x {at_once}", [same, rounds])
                print(f"held at {steps}, {at_once} at once: {same} of {len(cases)} texts equal, {rounds} rounds")
                assert same >= len(cases) * 7 / 8, "more than a tie of bfloat16 in eight texts"
                assert rounds < 0.7 * 160 * len(cases)
        state = adaptive(client)
        assert all(state["rounds_by_tier"][str(drafts)] > 0 for drafts in KINDS)
        assert not state["degraded"]
