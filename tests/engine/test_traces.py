"""A trace gives for each position what SGLang's own rounds accept there."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
import torch

from benchmarks.traces.recorder import Recorder, Recording
from benchmarks.traces.replay import rounds
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.traces import CHAIN
from tests.engine.workload import Case

TOKENS = 100
PROMPTS = [prompt for family in models.FAMILIES for prompt in models.prompts(family)[:1]]
IGNORE_EOS = {"ignore_eos": True}


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    folders = models.FOLDER / "target", models.FOLDER / "draft"
    recorder = Recorder(*folders, "cpu", torch.float32, temperature=0.0, seed=0)
    return recorder.record([recorder.encode(prompt, chat=False) for prompt in PROMPTS], TOKENS, ignore_eos=True)


def test_every_round_of_the_engine_accepts_what_was_recorded(ema: CpuServer, recordings: list[Recording]) -> None:
    seen = set()
    ema.force_steps(CHAIN)
    try:
        for prompt, recording in zip(PROMPTS, recordings, strict=True):
            parts = list(Case(prompt, TOKENS, IGNORE_EOS).stream(ema))
            assert tuple(parts[-1]["output_ids"]) == recording.tokens[:TOKENS]
            # Output token TOKENS - 1 starts no round: it is the last one requested.
            taken = rounds(recording.accepted[: TOKENS - 1], CHAIN)
            ends = set(accumulate(taken, initial=1))
            # A slow reader gets several rounds in one part; no part ends within a round.
            assert {len(part["output_ids"]) for part in parts[:-1]} <= ends
            served = Counter(dict(enumerate(parts[-1]["meta_info"]["spec_correct_drafts_histogram"])))
            # The server may cut the last round short; every other round must match the recording.
            assert not Counter(tokens - 1 for tokens in taken[:-1]) - served
            assert parts[-1]["meta_info"]["spec_verify_ct"] == len(taken)
            seen.update(taken)
    finally:
        ema.force_steps(None)
    assert {1, CHAIN + 1} < seen, "rounds that accept nothing, everything and some are wanted"
