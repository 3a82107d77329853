"""The shipped pair in a real server does, round by round, what its evaluation says it does."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from train import checkpoint, evaluate

STEPS, NEW_TOKENS, PROMPTS = 7, 72, 2


@pytest.mark.parametrize("family", ["easy", "hard", "mixed"])
def test_server_takes_the_rounds_that_the_evaluation_computes(ema: CpuServer, family: str) -> None:
    target = checkpoint.load_target(Path(models.target_path()))
    draft = checkpoint.load_draft(Path(models.draft_path()))
    prompts = models.prompts(family)[:PROMPTS]
    ema.force_steps(STEPS)
    try:
        answers = ema.generate(prompts, NEW_TOKENS, ignore_eos=True)
    finally:
        ema.force_steps(None)
    # A few tokens more than asked for: the server's last round may draft past the end, too.
    writings = evaluate.write(target, [prompt.encode() for prompt in prompts], NEW_TOKENS + 2 * STEPS)
    computed = evaluate.accept_lengths(target, draft, writings, [STEPS])[STEPS]
    for answer, writing, lengths in zip(answers, writings, computed, strict=True):
        assert answer["output_ids"] == writing.ids[writing.prompt :][:NEW_TOKENS].tolist()
        # The first new token comes from prefill, not from a round.
        taken = 1 + next(i for i, total in enumerate(accumulate(lengths)) if total >= NEW_TOKENS - 1)
        assert answer["meta_info"]["spec_verify_ct"] == taken
        served = Counter(dict(enumerate(answer["meta_info"]["spec_correct_drafts_histogram"])))
        # The server may cut the last round short; every other one must be as computed.
        assert not Counter(length - 1 for length in lengths[: taken - 1]) - served
