"""Whether greedy output with changing steps is that of no speculation, and how near a tie was where it is not."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.served import loop
from benchmarks.served.questions import Question
from benchmarks.served.report import Report
from benchmarks.server.policies import DEPTHS
from benchmarks.server.servers import Running

if TYPE_CHECKING:
    from benchmarks.served.phases import Asked

Outputs = dict[int, list[int]]
FORCE_SECONDS = 0.01
"""Between two forced changes: a few rounds of a small model."""

TIES = (0.0626, 0.1251, 0.2501)
"""Nats: one step of bfloat16 for logits of 8 to 16, 16 to 32, 32 to 64."""

TOP = 64


def compare(plain: Running, ours: Running, asked_for: Sequence[Question], asked: Asked, report: Report) -> None:
    """Let both answer every question; *plain* again at other batch sizes, which tells what rounding alone changes."""
    batch = max(asked.batches)
    wanted = asked_for[: asked.requests.get(0, len(asked_for))]
    reference, _ = _outputs(plain, wanted, batch, asked.tokens)
    ways = {
        "by policy": lambda: _outputs(ours, wanted, batch, asked.tokens),
        "forced every few rounds": lambda: _forced(ours, wanted, batch, asked.tokens),
        "no speculation, another batch size": lambda: _outputs(plain, wanted, max(1, batch // 4), asked.tokens),
    }
    for name, run in ways.items():
        try:
            outputs, what = run()
            found = differences(reference, outputs)
            gaps = _gaps(plain, wanted, reference, outputs, found)
            report.content[name] = {"questions": len(wanted), **verdict(len(reference), found, gaps), **what}
            print(f"  {name}: {report.content[name]}"[:400], flush=True)
        except Exception as problem:
            report.note(f"{name}: {type(problem).__name__}: {problem}")
        report.write()


def differences(reference: Outputs, outputs: Outputs) -> dict[int, int]:
    """Return for each question that both answered, and not alike, the first position where they differ."""
    return {
        number: next(at for at, (a, b) in enumerate(zip(outputs[number], want, strict=False)) if a != b)
        for number, want in reference.items()
        if number in outputs and outputs[number] != want
    }


def verdict(answered: int, found: dict[int, int], gaps: Sequence[float | None]) -> dict[str, Any]:
    """Return how many outputs are equal, and how far apart the two tokens were where they differ, in nats.

    A gap of None is a token beyond the likeliest TOP, which no rounding explains.
    """
    known = sorted(gap for gap in gaps if gap is not None)
    return {
        "equal": answered - len(found),
        "different": len(found),
        "ties": {f"{limit:.4f}": sum(gap <= limit for gap in known) for limit in TIES},
        "largest_gaps": known[-5:],
        "beyond_the_likeliest": len(gaps) - len(known),
    }


def _outputs(server: Running, wanted: Sequence[Question], batch: int, tokens: int) -> tuple[Outputs, dict[str, Any]]:
    def make(number: int, place: int) -> loop.Body:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return {"input_ids": wanted[number].ids, "sampling_params": sampling}

    before = server.process.read()
    done = loop.run(server.client.url, len(wanted), batch, make, cut=False, patience=240)
    counted = server.process.read() - before
    if len(done.answers) < len(wanted):
        raise RuntimeError(f"{len(wanted) - len(done.answers)} requests failed: {done.failed[:1]}")
    what = {"rounds": int(counted.rounds), "switches": int(counted.switches), "depths": counted.depths()}
    return {number: answer["output_ids"] for number, answer in done.answers.items()}, what


def _forced(server: Running, wanted: Sequence[Question], batch: int, tokens: int) -> tuple[Outputs, dict[str, Any]]:
    """The same while another thread holds other steps every FORCE_SECONDS."""
    over, draw = threading.Event(), random.Random(0)

    def change() -> None:
        while not over.is_set():
            server.force(draw.choice(DEPTHS))
            time.sleep(FORCE_SECONDS)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        return _outputs(server, wanted, batch, tokens)
    finally:
        over.set()
        thread.join(30)
        server.force(None)


def _gaps(
    plain: Running, wanted: Sequence[Question], reference: Outputs, outputs: Outputs, found: dict[int, int]
) -> list[float | None]:
    """Return how far apart the plain server holds the two tokens that each pair of outputs first differs in."""
    if not found:
        return []
    numbers = list(found)
    prefixes = [[*wanted[number].ids, *reference[number][: found[number]]] for number in numbers]
    body = {
        "input_ids": prefixes,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": TOP,
    }
    gaps: list[float | None] = []
    for number, answer in zip(numbers, plain.client.post("/generate", body), strict=True):
        top = {int(token): float(value) for value, token, _ in answer["meta_info"]["output_top_logprobs"][0]}
        pair = [top.get(ids[number][found[number]]) for ids in (reference, outputs)]
        gaps.append(None if None in pair else abs(pair[0] - pair[1]))  # type: ignore[operator]
    return gaps
