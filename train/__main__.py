"""`python -m train`: make the tiny pair again, or one part of it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from train import checkpoint, report, teach
from train.block_draft import BlockDraft
from train.draft import Draft
from train.model import ModelSize
from train.target import Target

MODELS = Path(__file__).resolve().parents[1] / "sglang_adaptive" / "lab" / "cpu_engine" / "models"
RECIPES = {"target": teach.TARGET_RECIPE, "draft": teach.DRAFT_RECIPE, "block_draft": teach.BLOCK_RECIPE}
PARTS = (*RECIPES, "prompts", "evaluate")


def main(argv: Sequence[str]) -> int:
    """Train target and drafts, write the prompts, measure; returns the exit code."""
    arguments = parse(argv)
    torch.set_num_threads(arguments.threads)
    # What decides the result; the output folder does not.
    command = f"python -m train --seed {arguments.seed} --threads {arguments.threads} --scale {arguments.scale:g}"
    for part in [arguments.part] if arguments.part else PARTS:
        begin = time.monotonic()
        print(f"{part}: started", flush=True)
        run(part, arguments, command)
        print(f"{part}: done in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train", description="Train the CPU engine's tiny model pair.")
    parser.add_argument("part", nargs="?", choices=PARTS, help="run only this part (default: all, in this order)")
    parser.add_argument("--out", type=Path, default=MODELS, help="output folder (default: in the package)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the training steps, for quick tests")
    return parser.parse_args(argv)


def run(part: str, arguments: argparse.Namespace, command: str) -> None:
    """Do one part; the draft and the evaluation read the output of earlier parts."""
    if part in RECIPES:
        teach_one(part, arguments, command)
    elif part == "prompts":
        report.write_prompts(arguments.out)
    else:
        report.evaluate(arguments.out, command)


def teach_one(part: str, arguments: argparse.Namespace, command: str) -> None:
    """Train and save the target or one of its drafts."""
    out, seed, recipe = arguments.out, arguments.seed, RECIPES[part]
    recipe = dataclasses.replace(recipe, steps=max(1, round(recipe.steps * arguments.scale)))
    begin = time.monotonic()
    model: Target | Draft | BlockDraft
    if part == "target":
        model = teach.train_target(ModelSize(), recipe, seed)
    else:
        taught = teach.train_draft if part == "draft" else teach.train_block_draft
        model = taught(checkpoint.load_target(out / "target"), recipe, seed)
    checkpoint.save(out / part, model)
    facts = {"seed": seed, "steps": recipe.steps, "seconds": round(time.monotonic() - begin)}
    report.record_training(out, part, facts, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
