"""The training: AdamW steps along the target's answers, until the clock ends them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.traces.llama import Llama
from train.smollm2.clock import Clock
from train.smollm2.lesson import Lesson, lesson_of, opinions_of
from train.smollm2.loss import Score, score
from train.smollm2.model import Draft
from train.smollm2.packing import epoch_of, packed
from train.smollm2.plan import STEPS, Plan
from train.smollm2.saving import new_draft, save_draft
from train.smollm2.store import Documents, save
from train.smollm2.together import ALONE, Together

LAST_RATE = 0.02
"""Share of the rate at the end of the cosine."""


@dataclass
class Place:
    """Finished batches of *epoch*, total steps and answer tokens, and the seconds they took."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save_checkpoint(path: Path, place: Place, draft: Draft, optimiser: torch.optim.Optimizer) -> None:
    """Write *path* atomically."""
    partial = path.with_name(path.name + ".part")
    torch.save({"place": vars(place), "draft": draft.state_dict(), "optimiser": optimiser.state_dict()}, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path, draft: Draft, optimiser: torch.optim.Optimizer) -> Place:
    """Load *draft* and *optimiser* from *path* and return the place; a new one if there is no such file."""
    if not path.is_file():
        return Place()
    kept = torch.load(path, map_location="cpu", weights_only=True)
    draft.load_state_dict(kept["draft"])
    optimiser.load_state_dict(kept["optimiser"])
    return Place(**kept["place"])


class Log:
    """Averages its inputs and adds a line to *file* every *seconds*; *used* are the stage's seconds so far."""

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
        """Write a line for everything since the last one."""
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


@dataclass(frozen=True)
class Training:
    """The models, data and processes of a training; all its output is in *out*."""

    out: Path
    target: Llama
    target_folder: Path
    documents: Documents
    plan: Plan
    start: Path | None = None
    together: Together = ALONE

    def run(self, clock: Clock) -> bool:
        """Train until the time is up or the call must stop; return whether this stage is done."""
        vocabulary = self._vocabulary()
        places = torch.full((self.target.vocab,), -1, device=vocabulary.device)
        places[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
        draft = new_draft(self.target, vocabulary, self.start)
        optimiser = _optimiser(draft, self.plan)
        place = load_checkpoint(self.out / "checkpoint.pt", draft, optimiser)
        log = Log(self.out / "train.log", self.plan.log_seconds, clock.used())
        saved = clock.used()
        while not self.together.agreed(clock.stop()):
            batches = epoch_of(self.documents, self.plan, place.epoch)
            if not batches:
                raise ValueError(f"{self.out}: no answer fits into {max(self.plan.widths)} tokens")
            for lesson in self._lessons(self.together.share(batches[place.batch :]), place.step):
                now = rate(place.step, self.together.agreed(clock.share()), self.plan)
                for group in optimiser.param_groups:
                    group["lr"] = now
                found = self._step(draft, optimiser, lesson, vocabulary, places)
                place.batch, place.step = place.batch + self.together.world, place.step + 1
                place.tokens += len(lesson.opinions) * self.together.world
                place.seconds = clock.used()
                if self.together.first:
                    log.add(place, now, found)
                    if place.seconds - saved >= self.plan.save_seconds:
                        saved = place.seconds
                        self._save(place, draft, optimiser, vocabulary, clock)
                if self.together.agreed(clock.stop()):
                    break
            else:
                place.epoch, place.batch = place.epoch + 1, 0
        if self.together.first:
            log.flush(place)
            self._save(place, draft, optimiser, vocabulary, clock)
        return clock.over()

    def _vocabulary(self) -> Tensor:
        """Return the draft's tokens [V], chosen before the first step: the most frequent ones in the answers."""
        path = self.out / "vocabulary.npy"
        if path.is_file():
            tokens = np.load(path)
        else:
            tokens = most_frequent(self.documents, self.target.vocab, self.plan.vocabulary)
            if self.together.first:
                save(path, tokens)
        return torch.from_numpy(tokens).to(self.target.embedding.device)

    def _lessons(self, batches: Sequence[Sequence[Sequence[int]]], step: int) -> Iterator[Lesson]:
        """Yield the lessons of *batches*, starting at *step*; the next one is prepared meanwhile."""
        device = self.target.embedding.device

        def prepare(index: int) -> Lesson:
            rng = np.random.default_rng([self.plan.seed, step + index])
            batch = packed(self.documents, batches[index], self.plan.widths)
            return lesson_of(batch, STEPS, self.plan.anchors, rng, device)

        with ThreadPoolExecutor(max_workers=1) as thread:
            coming = thread.submit(prepare, 0)
            for index in range(len(batches)):
                lesson = coming.result()
                if index + 1 < len(batches):
                    coming = thread.submit(prepare, index + 1)
                yield lesson

    def _step(
        self, draft: Draft, optimiser: torch.optim.Optimizer, lesson: Lesson, vocabulary: Tensor, places: Tensor
    ) -> Score:
        opinions = opinions_of(self.target, lesson, vocabulary, places)
        device = vocabulary.device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found = score(draft, self.target, lesson, opinions, self.plan)
        found.loss.backward()
        self.together.average_gradients(draft.parameters())
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        found.loss = found.loss.detach()  # the log must not keep the graph
        return found

    def _save(
        self, place: Place, draft: Draft, optimiser: torch.optim.Optimizer, vocabulary: Tensor, clock: Clock
    ) -> None:
        save_checkpoint(self.out / "checkpoint.pt", place, draft, optimiser)
        clock.keep(place.seconds)
        layers = [layer - 1 for layer in self.target.captured]  # SGLang counts by outputs
        save_draft(self.out / "draft", draft, self.target_folder, layers, vocabulary)


def rate(step: int, share: float, plan: Plan) -> float:
    """Return the learning rate: warm-up by steps, then a cosine over the *share* of the time that is used."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return plan.rate * min(1.0, (step + 1) / plan.warm_up) * (LAST_RATE + (1 - LAST_RATE) * cosine)


def most_frequent(documents: Documents, vocab: int, count: int) -> np.ndarray:
    """Return the *count* most frequent tokens of the answers, int64 in ascending order."""
    position = np.arange(len(documents.tokens)) - np.repeat(documents.starts[:-1], documents.lengths())
    answers = documents.tokens[position >= np.repeat(documents.prompts, documents.lengths())]
    found = np.bincount(answers, minlength=vocab)
    return np.sort(np.argsort(-found, kind="stable")[:count])


def _optimiser(draft: Draft, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    matrices = [weight for weight in draft.parameters() if weight.dim() == 2]
    others = [weight for weight in draft.parameters() if weight.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    fused = matrices[0].device.type == "cuda"
    return torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), fused=fused)
