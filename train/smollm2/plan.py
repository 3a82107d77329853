"""The sizes for training the draft; a rehearsal uses smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

STAGES = {"questions": 2.0, "answers": 6.0, "train": 15.0, "pack": 1.0, "measure": 2.0}
"""Each stage and its default minutes. `pack` and `measure` have no limit of their own."""

STEPS = 7
"""Draft steps that training unrolls: as many as the deepest measured chain has."""


@dataclass(frozen=True)
class Plan:
    """Tokens are the target's; a batch counts padding too."""

    seed: int = 1

    asked: int = 130_000
    """Questions that the model asks itself."""
    contexts: int = 16_000
    """Questions about passages that it wrote earlier."""
    translations: int = 14_000
    passages: int = 6_000
    question_tokens: int = 128
    context_tokens: int = 1_500
    """Maximum tokens of a question about passages, so that its answer fits into the longest row."""
    wave: int = 4_096
    """Questions written at once."""

    answer_tokens: int = 392
    """Maximum tokens of an answer: 384 positions are measured, and the last one's chain looks further."""
    chunk: int = 16_384
    """Questions within which those of similar length are answered together."""
    write_tokens: int = 1 << 20
    """Tokens of a batch while writing: 24 GB of keys and values at SmolLM2's size in bfloat16."""

    vocabulary: int = 16_896
    """Tokens that the draft can propose: the largest multiple of 512 whose file stays below 30 MB in bfloat16."""
    widths: tuple[int, ...] = (512, 2048)
    """Lengths of packed rows; a document goes into the shortest that fits it."""
    train_tokens: int = 24_576
    rate: float = 1e-3
    warm_up: int = 80
    anchors: float = 0.5
    """Share of a row's positions whose chains continue past the first step."""
    soft: float = 0.7
    """Weight of the target's distribution in the loss; the rest is its most likely token's."""
    log_seconds: float = 10.0
    save_seconds: float = 60.0

    measured: int | None = None
    """Number of measured Spec-Bench questions; None for all 480."""
    positions: int = 384
    """Maximum positions of a measured answer."""
    record_tokens: int = 1 << 17
    """Tokens of a batch while measuring, in float32: attention over long prompts takes their square."""
