"""The real pair, ready to be served on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive.lab.models.errors import ModelError
from sglang_adaptive.lab.models.smollm2 import NAME, Tick, get_target
from sglang_adaptive.lab.models.smollm2_draft import get_draft

CACHED_TOKENS = 16384
"""Tokens that a server has room for; the target's keys and values take 46 kB each in float32."""

LAUNCH_STEPS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """Folders of a target and of its EAGLE-3 draft."""

    target: Path
    draft: Path

    def plain(self) -> tuple[str, ...]:
        """Return the arguments of ``serve-cpu`` for the target alone."""
        return (
            "--model-path", str(self.target),
            "--served-model-name", NAME,
            "--max-total-tokens", str(CACHED_TOKENS),
        )  # fmt: skip

    def adaptive(self, config: Path) -> tuple[str, ...]:
        """Return the arguments for the pair under the adaptive *config*."""
        return (*self.plain(), *speculation(self.draft, config))


def ready_pair(tick: Tick) -> Pair:
    """Return the pair, put into the cache first unless it is there. Raises ModelError."""
    draft = get_draft()
    if draft is None:
        raise ModelError(
            "the draft is not in the cache: run `sglang-adaptive models get smollm2` in a checkout, or with --draft"
        )
    return Pair(get_target(tick), draft)


def speculation(draft: Path | str, config: Path, steps: int = LAUNCH_STEPS) -> Sequence[str]:
    """Return SGLang's arguments for a chain of drafts that starts at *steps* and adapts by *config*."""
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(draft),
        "--speculative-eagle-topk", "1",
        "--speculative-num-steps", str(steps),
        "--speculative-num-draft-tokens", str(steps + 1),
        "--speculative-adaptive-config", str(config),
    )  # fmt: skip
