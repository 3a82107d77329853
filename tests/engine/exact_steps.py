"""Sampling parameters of every kind on SGLang's scheduler in this process: requests come and go, one depth per turn.

Outputs must not depend on the loop, the depths or whether anything drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sglang_adaptive.lab.cpu_engine import models
from tests.engine import processors
from tests.engine.stepping import EAGLE3, Stepped

DEPTHS = {"EAGLE3": (0, 1, 3, 7), "NGRAM": (0, 2, 5, 11), "nothing": ()}
TOKENS = 40
STOPS = list(range(97, 110))
KINDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "frequency": {"frequency_penalty": 2.0},
    "rewards": {"frequency_penalty": -0.3, "presence_penalty": -0.2},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 2.0},
    "all penalties": {"frequency_penalty": 1.1, "presence_penalty": 0.9, "repetition_penalty": 1.3},
    "minimum": {"min_new_tokens": 20, "stop_token_ids": STOPS, "ignore_eos": False},
    "bias": {"logit_bias": {"97": 5.0, "101": -9.0}, "presence_penalty": 0.5},
    "grammar": {"regex": "(ab|cd){3,20}x"},
    "penalised grammar": {
        "ebnf": 'root ::= ("yes" | "no") (" " [a-z]{1,6}){2,9} "."',
        "frequency_penalty": 1.0,
        "ignore_eos": False,
    },
    "banned": {"custom_params": {"banned": [32, 97, 101]}},
    "countdown": {"custom_params": {"token": 71}},
    "penalised countdown": {"custom_params": {"token": 71}, "frequency_penalty": 0.9},
    "seed": {"temperature": 1.5, "top_p": 0.98, "sampling_seed": 7},
    "another seed": {"temperature": 2.5, "top_k": 9, "top_p": 0.9, "sampling_seed": 11, "presence_penalty": 0.4},
}
"""Sampling parameters by name; one request arrives every second turn."""
PROCESSORS = {
    "banned": processors.Banned,
    "countdown": processors.Countdown,
    "penalised countdown": processors.Countdown,
}
ABORTED = "rewards"


def _penalize_in_one_order() -> None:
    """Let SGLang add penalties before it scales by others, as patches/0.5.23/0020 does; else the order varies."""
    from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator as Orchestrator

    whole = Orchestrator.apply

    def apply(self: Any, logits: torch.Tensor, repeat: int | None = None) -> None:
        self.penalizers = dict(sorted(self.penalizers.items(), key=lambda item: item[0].is_multiplicative))
        whole(self, logits, repeat)

    Orchestrator.apply = apply


class ExactStepper(Stepped):
    """A scheduler that drafts with *algorithm*, if any."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self.depths = DEPTHS[algorithm]
        more = {
            "EAGLE3": EAGLE3,
            "NGRAM": ("--speculative-algorithm", "NGRAM"),
            "nothing": ("--disable-overlap-schedule",),
        }[algorithm]
        config = {"throughput": {"candidate_steps": list(self.depths)}} if self.depths else None
        super().__init__(folder, config, "--enable-custom-logit-processor", "--enable-deterministic-inference", *more)
        _penalize_in_one_order()

    def write(
        self, depths: Sequence[int] = (), overlap: bool = False, retract: bool = False, plainly: bool = False
    ) -> dict[str, Any]:
        """Run requests of all KINDS with each of *depths* in turn, one turn each; *plainly* without parameters."""
        arrivals = iter(KINDS)

        def step(now: int) -> bool:
            kind = next(arrivals, None) if now % 2 == 0 else None
            if kind is not None:
                family = "hard" if len(self.reqs) % 3 == 2 else "easy"
                ids = self.encode(models.prompts(family)[len(self.reqs) % 8])
                if plainly:
                    self.ask(kind, ids, TOKENS)
                else:
                    sent = processors.to_str(PROCESSORS[kind]) if kind in PROCESSORS else None
                    self.ask(kind, ids, TOKENS, processor=sent, **KINDS[kind])
            if now == 14:
                self.abort(ABORTED)
            return len(self.reqs) == len(KINDS) and self.done()

        from sglang.srt.managers import scheduler as module

        with mock.patch.object(module, "TEST_RETRACT", retract), mock.patch.object(module, "TEST_RETRACT_INTERVAL", 9):
            self.play_depths(depths, overlap, step)
        return {
            "outputs": {rid: ids for rid, ids in self.outputs().items() if rid != ABORTED},
            "rounds": {rid: req.spec_verify_ct for rid, req in self.reqs.items()},
            "retracted": self.retractions(),
        }


def run(folder: Path, algorithm: str) -> list[dict[str, Any]]:
    lab = ExactStepper(folder, algorithm)
    if not lab.depths:
        return [lab.write(), lab.write(plainly=True)]
    none, shallow, middle, deep = lab.depths
    switching = (deep, none, middle, shallow, shallow, none)
    runs = [lab.write((deep,), overlap=True), lab.write(switching), lab.write(switching, overlap=True, retract=True)]
    if algorithm == "EAGLE3":
        runs.append(lab.write((none,), overlap=True))
    return runs
