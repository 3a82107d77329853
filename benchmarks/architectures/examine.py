"""One family from start to record: both servers, every depth, and the verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.architectures.families import Family
from benchmarks.architectures.servers import ArchitectureServer, Kind
from benchmarks.architectures.texts import BATCHES, Answers, ask, ask_while_switching, prompts, score, takes
from benchmarks.architectures.verdicts import Text, bound, counted, gaps, judged, unlikely
from benchmarks.server.starting import NotStarted
from sglang_adaptive.client import RequestError

Record = dict[str, Any]


DOUBTED = 3
"""Tokens of a text whose gap is above the bound and which the reference is asked for again; more are an error."""


class OutOfTime(RuntimeError):
    """The family's time is over."""


def examine(family: Family, folder: Path, seconds: float, keep: Callable[[Record], None], cpu: bool = False) -> Record:
    """Run *family* for at most about *seconds* and return its record.

    *keep* gets the record after every run, so that what was measured outlives an end from outside. No error of a server
    is raised: the record's ``error`` has its last line.
    """
    begun = time.monotonic()
    record = _begun(family)
    deadline = begun + seconds
    adaptive = ArchitectureServer(family, folder, Kind.ADAPTIVE, cpu)
    reference = ArchitectureServer(family, folder, Kind.REFERENCE, cpu)
    static = ArchitectureServer(family, folder, Kind.STATIC, cpu) if family.static else None
    servers = [server for server in (adaptive, reference, static) if server is not None]
    record["command"] = [word.removeprefix(f"{folder}/") for word in adaptive.command[1:]]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait(deadline)
        _Family(family, record, adaptive, reference, static, deadline, keep).run()
    except (NotStarted, OutOfTime) as error:
        record["error"] = str(error)
    except (OSError, RequestError, ValueError, KeyError, TypeError) as error:
        record["error"] = _why(error, *servers)
    finally:
        record["reference_start_seconds"] = reference.start_seconds
        record["start_seconds"] = adaptive.start_seconds
        _look(record, adaptive)
        for server in servers:
            server.stop()
        record["seconds"] = round(time.monotonic() - begun, 1)
        keep(record)
    return record


def _begun(family: Family) -> Record:
    return {
        "family": family.name,
        "models": family.models,
        "algorithm": family.algorithm,
        "draft": family.draft_kind,
        "arguments": list(family.arguments),
        "variables": dict(family.variables),
        "needs": family.needs,
        "error": None,
        "active": None,
        "depths": [],
        "runs": [],
        "static_runs": [],
    }


def _why(error: Exception, *servers: ArchitectureServer) -> str:
    ended = [f"{server.name} ended: {server.last_error()}" for server in servers if not server.is_well()]
    return "; ".join(ended) or f"{type(error).__name__}: {error}"[:400]


def _look(record: Record, adaptive: ArchitectureServer) -> None:
    """Add what the server says of itself; nothing where it does not answer."""
    if adaptive.start_seconds is None or not adaptive.is_running():
        return
    try:
        info = adaptive.server_info()
        state = info["internal_states"][0]["adaptive"]
    except (OSError, RequestError, KeyError, IndexError):
        return
    record["attention_backend"] = info.get("attention_backend")
    record["startup"] = state.get("startup")
    kept = ("active", "reason", "switches", "rounds_by_tier", "accepted_by_tier", "degraded_reason", "zero_steps")
    for name in (*kept, *(["verify_budget"] if "verify_budget" in state else [])):
        record[name] = state.get(name)


class _Family:
    """The runs of one family, on servers that answer."""

    def __init__(
        self,
        family: Family,
        record: Record,
        adaptive: ArchitectureServer,
        reference: ArchitectureServer,
        static: ArchitectureServer | None,
        deadline: float,
        keep: Callable[[Record], None],
    ) -> None:
        target = family.target.get("text_config", family.target)
        self._prompts = prompts(max(BATCHES), target["vocab_size"])
        self._record, self._adaptive, self._reference, self._static = record, adaptive, reference, static
        self._deadline, self._keep = deadline, keep
        self._expected: dict[int, list[list[int]]] = {}
        self._own_gaps: dict[tuple[int, int], list[float]] = {}
        self._deepest: dict[int, list[list[int]]] = {}
        self._bound = 0.0

    def run(self) -> None:
        """Ask the reference, the adaptive server at every depth, switching and by its policy, and the static one."""
        _look(self._record, self._adaptive)
        self._keep(self._record)
        self._ask_reference()
        if not self._record["active"]:
            self._judge_all("launch depth", self._adaptive, ask)
            return
        depths = [tier["steps"] for tier in self._record["startup"]["tiers"]]
        self._record["depths"] = depths
        # The deepest first: a narrower depth after it may read what it left behind.
        for steps in sorted(depths, reverse=True):
            self._adaptive.force_steps(steps)
            self._judge_all(f"depth {steps}", self._adaptive, ask)
        self._judge_all("switching", self._adaptive, lambda server, wanted: ask_while_switching(server, wanted, depths))
        self._adaptive.force_steps(None)
        self._judge_all("policy", self._adaptive, ask)
        if self._static is not None:
            self._judge_all("static", self._static, ask, into="static_runs")

    def _ask_reference(self) -> None:
        """Keep the reference's texts for each batch size, and measure the gaps of its own tokens."""
        found: list[float] = []
        for batch in BATCHES:
            wanted = self._prompts[:batch]
            self._expected[batch] = ask(self._reference, wanted).outputs
            for index, (prompt, output) in enumerate(zip(wanted, self._expected[batch], strict=True)):
                self._in_time()
                self._own_gaps[batch, index] = gaps(score(self._reference, prompt, output), output)
                found += self._own_gaps[batch, index]
        self._bound = bound(found)
        largest = max(BATCHES)
        pairs = [
            (own, other) for batch in BATCHES
            for own, other in zip(self._expected[batch], self._expected[largest], strict=False)
        ]  # fmt: skip
        self._record["reference"] = {
            "tokens": len(found),
            "largest_gap": max(found),
            "unlikely_tokens": unlikely(found) / len(found),
            "unlikely_by_batch": {str(batch): self._own_unlikely(batch) for batch in BATCHES},
            "bound": self._bound,
            "texts_that_differ_between_batch_sizes": sum(own != other for own, other in pairs),
            "different_texts": len({tuple(text) for text in self._expected[largest]}),
            "different_tokens": len({token for text in self._expected[largest] for token in text}),
        }

    def _own_unlikely(self, batch: int) -> float:
        found = [gap for (size, _), own in self._own_gaps.items() if size == batch for gap in own]
        return unlikely(found) / len(found)

    def _judge_all(
        self, how: str, server: ArchitectureServer, asked: Callable[[Any, Sequence[list[int]]], Answers],
        into: str = "runs",
    ) -> None:  # fmt: skip
        for batch in BATCHES:
            self._in_time()
            answers = asked(server, self._prompts[:batch])
            judgements = [self._judge(batch, index, output) for index, output in enumerate(answers.outputs)]
            texts = [text for text, _ in judgements]
            tokens = sum(map(len, answers.outputs))
            run = {"how": how, "batch": batch, "tokens": tokens, "rounds": answers.rounds, "accepted": answers.accepted}
            run["unlikely_tokens"] = sum(unlikely(found) for _, found in judgements) / tokens
            deepest = self._deepest.setdefault(batch, answers.outputs)
            run["as_deepest"] = sum(one == other for one, other in zip(answers.outputs, deepest, strict=True))
            self._record[into].append({**run, **counted(texts)})
            self._keep(self._record)

    def _judge(self, batch: int, index: int, output: list[int]) -> tuple[Text, list[float]]:
        """Return the verdict on a text, and the gaps of its tokens."""
        expected = self._expected[batch][index]
        if expected == output:
            return judged(expected, output, None, self._bound), self._own_gaps[batch, index]
        prompt = self._prompts[index]
        found = gaps(score(self._reference, prompt, output), output)
        doubted = [at for at, gap in enumerate(found) if gap > self._bound]
        if len(doubted) <= DOUBTED:
            for at in doubted:
                found[at] = 0.0 if takes(self._reference, prompt, output, at) else found[at]
        return judged(expected, output, found, self._bound), found

    def _in_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime("the family's time was over")
