"""Record a trace of a block draft: `python -m benchmarks.traces.blocks --out benchmarks/traces/tiny-blocks.npz`.

The drafts of a block depend on its width, because all of its tokens attend to each other. The trace has the widest
block. A replay cuts it to the width of the round, as if the whole block had been drafted and part of it verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.harness.results import command_parser
from benchmarks.traces.files import write
from benchmarks.traces.record import origin
from benchmarks.traces.repetition import loop_start
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.traces import Trace
from train import checkpoint, evaluate
from train.block_draft import BLOCK, BlockDraft
from train.target import Target

DRAFTS = BLOCK - 1


def main(argv: Sequence[str]) -> int:
    """Record the prompts that ship with the tiny pair; returns 0."""
    given = _parser().parse_args(argv)
    target_folder, draft_folder = Path(models.target_path()), Path(models.block_draft_path())
    target, draft = checkpoint.load_target(target_folder), checkpoint.load_block_draft(draft_folder)
    asked = json.loads(given.prompts.read_text(encoding="utf-8"))
    prompts = [(category, text.encode()) for category, some in asked.items() for text in some[: given.questions]]
    writings = evaluate.write(target, [text for _, text in prompts], given.positions + DRAFTS + 1)
    found = [judged(target, draft, one, given.positions) for one in writings]
    prompted = f"{given.prompts.parent.name}/{given.prompts.name}, up to {given.positions} positions"
    outputs = [one.ids[one.prompt :][: given.positions].tolist() for one in writings]
    write(
        given.out,
        Trace(
            origin("blocks", argv, target_folder, draft_folder, prompted),
            category=tuple(category for category, _ in prompts),
            length=np.full(len(prompts), given.positions, np.int32),
            loop_start=np.array([loop_start(output, given.positions) for output in outputs], np.int32),
            accepted=np.concatenate(found),
        ),
    )
    return 0


def judged(target: Target, draft: BlockDraft, one: evaluate.Writing, positions: int) -> npt.NDArray[np.uint8]:
    """Return accepted drafts [positions] of the blocks at a text's output tokens."""
    correct = evaluate.drafted_blocks(target, draft, one.ids[None], DRAFTS)
    return correct[0, one.prompt - 1 : one.prompt - 1 + positions].numpy().astype(np.uint8)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("traces.blocks", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="trace to write (.npz)")
    parser.add_argument(
        "--prompts",
        type=Path,
        default=Path(models.target_path()).with_name("prompts.json"),
        help=".json by category",
    )
    parser.add_argument("--positions", type=int, default=256, help="positions per request (default 256)")
    parser.add_argument("--questions", type=int, help="maximum prompts per category (default all)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
