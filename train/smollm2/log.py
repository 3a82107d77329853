"""The line that a training writes every few seconds."""

from __future__ import annotations

from pathlib import Path

import torch

from train.smollm2.checkpoint import Place
from train.smollm2.loss import Score


class Log:
    """Averages what came by and adds a line to *file* every *seconds*; *used* are the stage's seconds so far."""

    def __init__(self, file: Path, seconds: float, used: float) -> None:
        self._file, self._seconds, self._last = file, seconds, used
        self._scores: list[Score] = []
        self._rate = 0.0

    def add(self, place: Place, rate: float, score: Score) -> None:
        self._scores.append(score)
        self._rate = rate
        if place.seconds - self._last >= self._seconds:
            self._last = place.seconds
            self.flush(place)

    def flush(self, place: Place) -> None:
        """Write the line of what came by since the last one."""
        if not self._scores:
            return
        loss = float(torch.stack([one.loss for one in self._scores]).mean())
        right = torch.stack([one.right for one in self._scores]).sum(dim=0).tolist()
        judged = torch.stack([one.judged for one in self._scores]).sum(dim=0).tolist()
        accepted, chains = (float(sum(getattr(one, key) for one in self._scores)) for key in ("accepted", "chains"))
        steps = " ".join(f"{hits / max(1, drafts):.3f}" for hits, drafts in zip(right, judged, strict=True))
        line = (
            f"{place.seconds:.0f} s, step {place.step}, epoch {place.epoch}, {place.tokens / 1e6:.2f}M answer tokens, "
            f"rate {self._rate:.2e}, loss {loss:.4f}, accept length {1 + accepted / max(1, chains):.3f}, "
            f"right at each step {steps}"
        )
        with self._file.open("a", encoding="utf-8") as file:
            print(line, file=file)
        print(line, flush=True)
        self._scores.clear()
