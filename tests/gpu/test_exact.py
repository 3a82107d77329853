"""Sampling parameters on a GPU mean at every depth what they mean without speculation.

In bfloat16 a verify and a plain decode round logits differently, so some texts diverge where two tokens are about as
likely, with any parameters. What a parameter must not do is make more of them diverge than plain requests do. With
SGLang's own verify nearly all penalised texts differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine import models
from tests.engine import processors
from tests.engine.exact_steps import KINDS, PROCESSORS
from tests.gpu.servers import serving, smollm2_pair, tiny_pair

TIERS = (0, 1, 3, 7)
PROMPTS, TOKENS = 8, 64
# Which of "all penalties" SGLang applies first without overlap differs from process to process: patches/0.5.23/0020.
GREEDY = [kind for kind, sampling in KINDS.items() if "temperature" not in sampling and kind != "all penalties"]
MARGIN = 0.2
"""More of a kind's texts than of plain ones that may diverge: 32 texts a kind."""


def texts(client: Client, kind: str) -> list[Any]:
    """Return what is written for easy and hard prompts with the sampling parameters of *kind*, in one batch."""
    prompts = [*models.prompts("easy")[: PROMPTS // 2], *models.prompts("hard")[: PROMPTS // 2]]
    sampling = {"temperature": 0, "ignore_eos": kind != "grammar", "max_new_tokens": TOKENS, **KINDS[kind]}
    body: dict[str, Any] = {"text": prompts, "sampling_params": sampling}
    if kind in PROCESSORS:
        body["custom_logit_processor"] = processors.to_str(PROCESSORS[kind])
    return [answer["output_ids"] for answer in client.post("/generate", body)]


def equal_shares(plain: Client, ours: Client) -> dict[str, float]:
    """Return the share of texts, over all depths, that are those of *plain*, by kind."""
    wanted = {kind: texts(plain, kind) for kind in GREEDY}
    equal = dict.fromkeys(GREEDY, 0)
    for steps in TIERS:
        ours.force_steps(steps)
        for kind in GREEDY:
            equal[kind] += sum(one == other for one, other in zip(texts(ours, kind), wanted[kind], strict=True))
    return {kind: number / (len(TIERS) * PROMPTS) for kind, number in equal.items()}


@pytest.mark.parametrize("backend", ["fa3", "triton", "flashinfer"])
def test_parameters_change_no_more_texts_than_rounding_does(
    backend: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pair = smollm2_pair() if backend == "flashinfer" else tiny_pair(tmp_path, "fa3")  # it wants heads of 64 and more
    extra = ("--enable-custom-logit-processor",)
    with ExitStack() as stack:
        alone = ("--disable-overlap-schedule", *extra)
        plain = stack.enter_context(serving(tmp_path / "plain.log", pair, backend, None, extra=alone))
        ours = stack.enter_context(serving(tmp_path / "ours.log", pair, backend, TIERS, extra=extra))
        begin = time.monotonic()
        shares = equal_shares(plain, ours)
        record_property("equal", shares)
        print(json.dumps(shares), f"{time.monotonic() - begin:.0f} s")
        assert min(shares.values()) >= shares["nothing"] - MARGIN
        assert shares["nothing"] > 0.5
        said = (tmp_path / "ours.log").read_text()
        assert "by SGLang alone from now on" not in said
