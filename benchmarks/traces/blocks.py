"""Record a trace of a draft of blocks: `python -m benchmarks.traces.blocks --out benchmarks/traces/tiny-blocks.npz`.

The drafts of a block depend on its width, since all of its tokens see each other. Recorded is the widest one; a replay
cuts it to the width of the round, as if the block were drafted whole and verified in part.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.traces.record import hardware
from benchmarks.traces.repetition import first_copy
from benchmarks.traces.weights import fingerprint
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.traces import Trace, write
from sglang_adaptive.lab.traces.trace import quantised
from train import checkpoint, evaluate
from train.block_draft import BLOCK, BlockDraft
from train.target import Target

DRAFTS = BLOCK - 1


def main(argv: Sequence[str] | None = None) -> int:
    """Record the prompts that ship with the tiny pair; returns 0."""
    words = sys.argv[1:] if argv is None else argv
    given = _parser().parse_args(argv)
    target = checkpoint.load_target(Path(models.target_path()))
    draft = checkpoint.load_block_draft(Path(models.block_draft_path()))
    asked = json.loads(given.prompts.read_text(encoding="utf-8"))
    prompts = [(category, text.encode()) for category, some in asked.items() for text in some[: given.questions]]
    writings = evaluate.write(target, [text for _, text in prompts], given.positions + DRAFTS + 1)
    found = [judged(target, draft, one) for one in writings]
    outputs = [tuple(one.ids[one.prompt :].tolist())[: given.positions] for one in writings]
    copies = [first_copy(output) for output in outputs]
    write(
        given.out,
        Trace(
            target=fingerprint(Path(models.target_path())),
            draft=fingerprint(Path(models.block_draft_path())),
            prompts=f"{given.prompts.parent.name}/{given.prompts.name}, up to {given.positions} positions",
            temperature=0.0,
            hardware=hardware("cpu", "float32"),
            command=shlex.join(["python", "-m", "benchmarks.traces.blocks", *words]),
            date=datetime.date.today().isoformat(),
            category=tuple(category for category, _ in prompts),
            length=np.full(len(prompts), given.positions, np.int32),
            # The round before a copy's first token drafts it already.
            loop_start=np.array([given.positions if at is None else max(1, at - 1) for at in copies], np.int32),
            accepted=np.concatenate([accepted[: given.positions] for accepted, _ in found]),
            confidence=np.concatenate([levels[: given.positions] for _, levels in found]),
        ),
    )
    return 0


@torch.no_grad()
def judged(
    target: Target, draft: BlockDraft, one: evaluate.Writing
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return accepted drafts [n] and confidence [n, 15] of the blocks that begin at the output tokens of a text."""
    ids, accepted, sure = one.ids[None], [], []
    logits, features = target(ids)
    best = logits.argmax(dim=-1)[0]
    for anchors in torch.arange(one.prompt, len(one.ids) - DRAFTS).split(evaluate.ANCHORS):
        chances = draft.logits(target, ids, features, anchors, BLOCK)[0].softmax(dim=-1)
        likeliest = chances.max(dim=-1)
        right = likeliest.indices == best[anchors[:, None] + torch.arange(DRAFTS)]
        accepted.append(right.long().cumprod(dim=-1).sum(dim=-1))
        sure.append(likeliest.values)
    return torch.cat(accepted).numpy().astype(np.uint8), quantised(torch.cat(sure).numpy())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.blocks", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="trace to write (.npz)")
    parser.add_argument(
        "--prompts", type=Path, default=Path(models.target_path()).with_name("prompts.json"), help=".json by category"
    )
    parser.add_argument("--positions", type=int, default=256, help="positions of a request (default 256)")
    parser.add_argument("--questions", type=int, help="most prompts of a category (default all)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
