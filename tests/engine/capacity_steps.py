"""Requests at the end of their context and of the KV cache, on SGLang's scheduler in this process, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import Asked, Stepped
from train import cut

DEPTHS = (0, 1, 3, 7, 15)
LAUNCH = 3
CONTEXT = 256
POOL = 4096
SMALL_POOL = 200

Ask = tuple[int, int, int]
"""The turn at which a request arrives, the length of its prompt, and its new tokens."""

ANY = 10_000
"""New tokens; SGLang limits a request to what its context has room for."""
RUNS: dict[str, list[Ask]] = {
    # SGLang accepts at most 249 tokens. If the request sets new tokens, it subtracts 4 from the context, for 3 steps.
    **{f"{length} tokens, {new} new": [(0, length, new)] for length in (230, 249) for new in (ANY, 252 - length)},
    "others": [(0, 40, 24), (0, 247, ANY), (3, 70, 16), (9, 246, ANY), (10, 40, 20)],
    "full": [(0, 40, 2), (0, 60, 30), (4, 50, 2)],
    "grammars": [(now, 40, 30) for now in (0, 1, 3, 4, 7, 9)],
    "pool": [(0, 150, 44)],
}
"""In "pool", SMALL_POOL has exactly the slots that a round of LAUNCH steps needs. In "full", SGLang finds no memory
whenever the result under way ends a request, and skips the round of the others."""

GRAMMAR = {"ebnf": 'root ::= ("yes" | "no") (" " [a-z]{1,6}){2,9} "."', "ignore_eos": False}
UNCONSTRAINED = (1, 4)
"""Requests of "grammars" without one, by place."""

CONTEXT_RUNS = [name for name in RUNS if name not in ("grammars", "pool")]
SHORT_CONTEXT = ("--context-length", str(CONTEXT), "--max-total-tokens", str(POOL))
SETUPS: dict[str, tuple[str | None, tuple[str, ...], list[str]]] = {
    "none": (None, (*SHORT_CONTEXT, "--disable-overlap-schedule"), list(RUNS)),
    "EAGLE3": ("EAGLE3", SHORT_CONTEXT, CONTEXT_RUNS),
    "STANDALONE": ("STANDALONE", SHORT_CONTEXT, ["others"]),
    "NGRAM": ("NGRAM", SHORT_CONTEXT, ["others"]),
    "mixed": ("EAGLE3", (*SHORT_CONTEXT, "--enable-mixed-chunk"), ["others", "grammars"]),
    "pool": ("EAGLE3", ("--max-total-tokens", str(SMALL_POOL), "--disable-radix-cache"), ["pool"]),
    "cached": ("EAGLE3", ("--max-total-tokens", str(SMALL_POOL)), ["pool"]),
}
"""Algorithm, further arguments, and runs; all others must match the outputs of "none". In "cached" no round may be
deeper than LAUNCH, because the prefix cache would lose the slots."""


class CapacityStepper(Stepped):
    """A scheduler with a short context that logs where each decode round writes."""

    SKIPS_ROUNDS = True

    def __init__(self, folder: Path, algorithm: str | None, *more: str) -> None:
        if algorithm is not None:
            more += ("--speculative-algorithm", algorithm, "--speculative-num-steps", str(LAUNCH))
        if algorithm == "EAGLE3":
            more += ("--speculative-draft-model-path", models.draft_path())
        if algorithm == "STANDALONE":
            draft = cut.write(folder / "draft", 2, Path(models.target_path()))
            more += ("--speculative-draft-model-path", str(draft))
        super().__init__(folder, None if algorithm is None else {"1": {"candidate_steps": list(DEPTHS)}}, *more)
        self.rounds: list[tuple[int, int]] = []
        """Steps of every decode round, and the last position that it wrote."""
        if self.worker is not None:
            self._log_rounds()

    def write(self, name: str, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of RUNS[*name*], forcing each of *depths* in turn, one turn each."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        mix, mixed = ScheduleBatch.mix_with_running, list[bool]()
        self.rounds.clear()
        text = self.encode(" ".join(models.prompts("easy"))) * 9
        asked: dict[str, Asked] = {}
        for place, (arrival, length, new) in enumerate(RUNS[name]):
            more = GRAMMAR if name == "grammars" and place not in UNCONSTRAINED else {}
            asked[str(place)] = (arrival, text[place : place + length], new, more)

        def logged(batch: Any, running: Any) -> None:
            mixed.append(any(req.grammar for req in running.reqs))
            mix(batch, running)

        full = self._full_where_one_ends() if name == "full" else nullcontext([])
        with mock.patch.object(ScheduleBatch, "mix_with_running", logged), full as skips:
            found = self.serve(asked, depths, overlap)
        return {
            "outputs": found["outputs"],
            "rounds": list(self.rounds),
            "mixed": len(mixed),
            "mixed with a grammar": sum(mixed),
            "skipped": len(skips),
            "lost": self.scheduler.max_total_num_tokens - self.free_slots(),
        }

    @contextmanager
    def _full_where_one_ends(self) -> Iterator[list[Any]]:
        """Let SGLang find no memory where the result under way ends a request; yield the batches of skipped rounds."""
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        ending, enough = self.scheduler._reqs_finishing_inflight, ScheduleBatch.check_decode_mem
        now: list[Any] = []
        skips: list[Any] = []

        def ends(batch: Any) -> list[Any]:
            now[:] = ending(batch)
            return list(now)

        def fits(batch: Any, *args: Any, **kwargs: Any) -> bool:
            if now and batch.batch_size():
                skips.append(batch)
                now.clear()
                return False
            return bool(enough(batch, *args, **kwargs))

        with (
            mock.patch.object(self.scheduler, "_reqs_finishing_inflight", ends),
            mock.patch.object(ScheduleBatch, "check_decode_mem", fits),
        ):
            yield skips

    def _log_rounds(self) -> None:
        activate, forward = self.worker.activate_step_by_batch, self.worker.forward_batch_generation
        batches: list[Any] = []

        def chosen(batch_size: int) -> None:
            activate(batch_size)
            reqs, lengths = batches[-1].reqs, batches[-1].seq_lens.tolist()
            steps, allocated = self.worker.speculative_num_steps, [req.kv.kv_allocated_len for req in reqs]
            for slots, length in zip(allocated, lengths, strict=True):
                assert length + steps < slots, f"{slots} slots for {steps} steps behind {length} tokens"
            assert max(allocated) <= self.scheduler.req_to_token_pool.req_to_token.shape[1]
            self.rounds.append((steps, max(lengths) + steps))

        def forwarded(batch: Any, *args: Any, **kwargs: Any) -> Any:
            batches[:] = [batch]
            return forward(batch, *args, **kwargs)

        self.worker.activate_step_by_batch, self.worker.forward_batch_generation = chosen, forwarded


def run(folder: Path, setup: str) -> list[dict[str, Any]]:
    """Return the outputs of every request of one of SETUPS and where its rounds wrote."""
    algorithm, more, names = SETUPS[setup]
    lab = CapacityStepper(folder, algorithm, *more)
    ladders: list[tuple[int, ...]] = [()] if algorithm is None else [DEPTHS[-1:], DEPTHS]
    return [
        {"name": name, "depths": depths, "overlap": overlap, **lab.write(name, depths, overlap)}
        for name in names
        for depths in ladders
        for overlap in ([False] if algorithm is None else [False, True])
    ]
