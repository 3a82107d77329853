"""Measures the pair on held-out prompts and records the results with their provenance."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from sglang_adaptive import provenance
from sglang_adaptive.lab.models.folders import sha256_of_file
from train.block_draft import BLOCK, BlockDraft
from train.checkpoint import WEIGHTS, load_block_draft, load_draft, load_target, write_json
from train.data import Exam, held_out_exams
from train.draft import Draft
from train.evaluate import Writing, accept_lengths, accept_lengths_of_blocks, write
from train.target import Target

EXAM_SEED = 20260
EXAMS_A_FAMILY = 24
NEW_TOKENS = 512
DEPTHS = range(1, 8)
BLOCK_DEPTHS = (1, 3, 7, BLOCK - 1)


def write_prompts(folder: Path) -> None:
    """Write the held-out prompts, by family, that ship with the pair."""
    exams = held_out_exams(EXAM_SEED, EXAMS_A_FAMILY, 0)
    write_json(folder / "prompts.json", {family: [exam.prompt for exam in some] for family, some in exams.items()})


def evaluate(folder: Path, command: str) -> dict[str, Any]:
    """Measure the pair in *folder*, write evaluation.json beside it and return its content."""
    target, draft = load_target(folder / "target"), load_draft(folder / "draft")
    blocks = load_block_draft(folder / "block_draft")
    exams = held_out_exams(EXAM_SEED, EXAMS_A_FAMILY, NEW_TOKENS)
    # All families in one batch: the time depends on the number of forward passes, hardly on their width.
    writings = iter(write(target, [exam.prompt.encode() for some in exams.values() for exam in some], NEW_TOKENS))
    families = {}
    for family, some in exams.items():
        written = [next(writings) for _ in some]
        families[family] = examine(target, draft, blocks, some, written)
        print(f"{family}: {json.dumps(families[family])}", flush=True)
    result = {
        "what": "mean accept length (correct drafts and bonus token) a round, greedy, by draft steps",
        "how": "computed in PyTorch from the target's greedy text and the draft's unrolled chains",
        "new_tokens": NEW_TOKENS,
        "prompts_a_family": EXAMS_A_FAMILY,
        "families": families,
        "sha256": {name: sha256_of_file(folder / name / WEIGHTS) for name in ("target", "draft", "block_draft")},
        **origin(command),
    }
    write_json(folder / "evaluation.json", result)
    return result


def record_training(folder: Path, part: str, facts: Mapping[str, Any], command: str) -> None:
    """Record in training.json how *part* of the pair was last trained."""
    path = folder / "training.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_json(path, known | {part: {**facts, **origin(command)}})


def examine(
    target: Target, draft: Draft, blocks: BlockDraft, exams: Sequence[Exam], writings: Sequence[Writing]
) -> dict[str, Any]:
    """Accept lengths of one family by depth, their range over prompts, and how well the target follows the rule."""
    by_depth = accept_lengths(target, draft, writings, DEPTHS)
    deepest = [fmean(text) for text in by_depth[max(DEPTHS)]]
    kept = [bytes_kept(exam, writing) for exam, writing in zip(exams, writings, strict=True)]
    return {
        "accept_length": mean_rounds(by_depth),
        "accept_length_by_prompt": [round(min(deepest), 3), round(max(deepest), 3)],
        "bytes_before_first_mistake": round(fmean(kept), 1),
        "accept_length_of_blocks": mean_rounds(accept_lengths_of_blocks(target, blocks, writings, BLOCK_DEPTHS)),
    }


def mean_rounds(by_depth: Mapping[int, Sequence[Sequence[int]]]) -> dict[str, float]:
    """Mean over all rounds of all texts, by depth."""
    return {str(depth): round(fmean(chain.from_iterable(texts)), 3) for depth, texts in by_depth.items()}


def bytes_kept(exam: Exam, writing: Writing) -> int:
    """Bytes written before the first that deviates from the rule."""
    pairs = zip(exam.answer, writing.written, strict=True)
    return next((i for i, (wanted, got) in enumerate(pairs) if wanted != got), len(exam.answer))


def origin(command: str) -> Mapping[str, Any]:
    """Command, date, processor and versions."""
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "cpu": provenance.cpu_model(),
        "threads": torch.get_num_threads(),
        "versions": provenance.versions("torch", "numpy", "safetensors", "tokenizers"),
    }
