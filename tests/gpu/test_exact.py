"""Sampling parameters on a GPU act at every depth as they do without speculation.

In bfloat16 a verify and a plain decode round logits differently, so outputs may diverge from the reference's where two
tokens are about equally likely, and penalized outputs diverge sooner. The reference gives the probability of both after
penalties, biases and processors. Two tokens are a tie if they are as close as the reference's own runs are to each
other (alone, in a batch, and reading its own output); otherwise the output is wrong. With SGLang's own verify, nearly
all penalized outputs are wrong.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive import ties
from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine import models
from tests.engine.exact_steps import KINDS, PROCESSORS, to_str
from tests.gpu.servers import TIERS, Line, serving_together, smollm2_pair, tiny_pair

PROMPTS, TOKENS = 8, 64
# Which of "all penalties" SGLang applies first without overlap varies by process: patches/0.5.23/0020.
GREEDY = [kind for kind, sampling in KINDS.items() if "temperature" not in sampling and kind != "all penalties"]


def body_of(kind: str) -> dict[str, Any]:
    """Return a batch of easy and hard prompts with the sampling parameters of *kind*."""
    prompts = [*models.prompts("easy")[: PROMPTS // 2], *models.prompts("hard")[: PROMPTS // 2]]
    sampling = {"temperature": 0, "ignore_eos": kind != "grammar", "max_new_tokens": TOKENS, **KINDS[kind]}
    body: dict[str, Any] = {"text": prompts, "sampling_params": sampling}
    if kind in PROCESSORS:
        body["custom_logit_processor"] = to_str(PROCESSORS[kind])
    return body


class Reference:
    """Outputs of a server without speculation, alone and in a batch, and the distance between its own runs."""

    def __init__(self, plain: Client) -> None:
        self._known: dict[str, list[tuple[ties.Answer, ties.Answer]]] = {}
        """By kind and prompt: the answer in a batch, and alone."""
        for kind in GREEDY:
            body = ties.as_reference(body_of(kind))
            alone = [plain.post("/generate", {**body, "text": text}) for text in body["text"]]
            self._known[kind] = list(zip(plain.post("/generate", body), alone, strict=True))
        pairs = (pair for known in self._known.values() for pair in known)
        noises = [ties.noise(*pair) for pair in pairs]
        for _, alone in self._known["nothing"]:
            body = ties.as_prompt(alone["prompt_token_ids"], alone["output_ids"])
            noises.append(ties.noise_of_reading(alone, plain.post("/generate", body)))
        self.width = ties.width(max(noises))
        """Nats of a tie."""

    def verdicts(self, kind: str, answers: list[ties.Answer]) -> Iterator[tuple[str, float]]:
        """Yield for each answer "equal", "tie" or "wrong", and the gap in nats of the tokens at which it diverges."""
        for answer, known in zip(answers, self._known[kind], strict=True):
            parted = ties.nearest(answer["output_ids"], known)[0]
            if parted is None:
                yield ties.EQUAL, 0.0
            else:
                yield ties.TIE if parted.gap <= self.width else ties.WRONG, parted.gap


def judged(plain: Client, ours: Client) -> tuple[dict[str, Counter[str]], dict[str, float], float]:
    """Return the verdicts by kind over all depths, the largest gap of each kind, and the width of a tie."""
    reference = Reference(plain)
    verdicts: dict[str, Counter[str]] = {kind: Counter() for kind in GREEDY}
    gaps = dict.fromkeys(GREEDY, 0.0)
    for steps in TIERS:
        ours.force_steps(steps)
        for kind in GREEDY:
            for verdict, gap in reference.verdicts(kind, ours.post("/generate", body_of(kind))):
                verdicts[kind][verdict] += 1
                gaps[kind] = max(gaps[kind], gap)
    return verdicts, gaps, reference.width


@pytest.mark.parametrize("backend", ["fa3", "triton", "flashinfer"])
def test_parameters_change_no_text_but_for_ties(
    backend: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pair = smollm2_pair() if backend == "flashinfer" else tiny_pair(tmp_path, "fa3")  # it needs heads of 64 or more
    extra = ("--enable-custom-logit-processor",)
    alone = ("--disable-overlap-schedule", *extra)
    lines = (
        Line(tmp_path / "plain.log", pair, backend, extra=alone),
        Line(tmp_path / "ours.log", pair, backend, TIERS, extra=extra),
    )
    with serving_together(*lines) as (plain, ours):
        begin = time.monotonic()
        verdicts, gaps, width = judged(plain, ours)
        for name, value in (("verdicts", verdicts), ("gaps", gaps), ("width", width)):
            record_property(name, value)
        print(json.dumps(verdicts), json.dumps(gaps), width, f"{time.monotonic() - begin:.0f} s")
        assert not any(found[ties.WRONG] for found in verdicts.values())
        assert verdicts["nothing"][ties.EQUAL] > len(TIERS) * PROMPTS / 2
        said = (tmp_path / "ours.log").read_text()
        assert "disabled exact" not in said
