"""Sampling parameters of every kind on SGLang's scheduler in this process: requests come and go, one depth per turn.

Outputs must not depend on the loop, the depths or whether anything drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.servers import TIERS, WIDTHS
from tests.engine.stepping import EAGLE3, Asked, Stepped

DEPTHS = {"EAGLE3": TIERS, "NGRAM": WIDTHS, "nothing": ()}
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
ABORTED = "rewards"


class Banned(CustomLogitProcessor):  # type: ignore[misc]
    """Bans the tokens in its parameters."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            logits[row, parameters["banned"]] = -float("inf")
        return logits


class Countdown(CustomLogitProcessor):  # type: ignore[misc]
    """Reads its request: every third token is the one in its parameters."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            if len(parameters["__req__"].output_ids) % 3 == 2:
                logits[row] = -float("inf")
                logits[row, parameters["token"]] = 0.0
        return logits


PROCESSORS = {"banned": Banned, "countdown": Countdown, "penalised countdown": Countdown}


def to_str(processor: type) -> str:
    """Return *processor* as a request sends it: by value, so that no server must import this module."""
    import dill

    dill.settings["recurse"] = True
    processor.__module__ = "__main__"
    return str(processor.to_str())  # type: ignore[attr-defined]


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
        self.depths, self._returns_states = DEPTHS[algorithm], algorithm == "NGRAM"
        more = {
            "EAGLE3": EAGLE3,
            "NGRAM": ("--speculative-algorithm", "NGRAM", "--enable-return-hidden-states"),
            "nothing": ("--disable-overlap-schedule",),
        }[algorithm]
        config = {"throughput": {"candidate_steps": list(self.depths)}} if self.depths else None
        super().__init__(folder, config, "--enable-custom-logit-processor", "--enable-deterministic-inference", *more)
        _penalize_in_one_order()
        self._states: dict[str, torch.Tensor] = {}
        """Hidden states of each request's output in the first run."""

    def write(
        self, depths: Sequence[int] = (), overlap: bool = False, retract: bool = False, plainly: bool = False
    ) -> dict[str, Any]:
        """Run requests of all KINDS with each of *depths* in turn, one turn each; *plainly* without parameters."""
        asked: dict[str, Asked] = {}
        for index, (kind, sampling) in enumerate(KINDS.items()):
            ids = self.encode(models.prompts("hard" if index % 3 == 2 else "easy")[index % 8])
            sent = to_str(PROCESSORS[kind]) if kind in PROCESSORS else None
            more = {} if plainly else {"processor": sent, "hidden_states": self._returns_states, **sampling}
            asked[kind] = (2 * index, ids, TOKENS, more)

        from sglang.srt.managers import scheduler as module

        with mock.patch.object(module, "TEST_RETRACT", retract), mock.patch.object(module, "TEST_RETRACT_INTERVAL", 9):
            found = self.serve(asked, depths, overlap, aborted=(ABORTED, 14))
        compared = found["outputs"] if self._returns_states and not retract else ()
        return {**found, "hidden_states_differ_by": max(map(self._differ_by, compared), default=0.0)}

    def _differ_by(self, rid: str) -> float:
        """Return the relative difference of the hidden states of a request's output from those of the first run."""
        req = self.reqs[rid]
        written = [row for row in req.hidden_states if not isinstance(row[0], list)]  # lists of rows belong to a prompt
        found = torch.tensor(written[: len(req.output_ids_through_stop) - 1])
        first = self._states.setdefault(rid, found)
        return float((found - first).norm(dim=1).max() / first.norm(dim=1).min())


def run(folder: Path, algorithm: str) -> list[dict[str, Any]]:
    lab = ExactStepper(folder, algorithm)
    if not lab.depths:
        return [lab.write(), lab.write(plainly=True)]
    none, shallow, middle, deep = lab.depths
    switching = (deep, none, middle, shallow, shallow, none)
    ways = ((none,), True), ((deep,), True), (switching, False)
    return [*(lab.write(depths, overlap) for depths, overlap in ways), lab.write(switching, overlap=True, retract=True)]
