"""The recipe of SmolLM2's draft, all stages, on a random toy-size model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.llama import Llama
from sglang_adaptive.lab.traces import read as read_trace
from train.smollm2.__main__ import main
from train.smollm2.clock import Clock
from train.smollm2.loop import Training
from train.smollm2.plan import Plan
from train.smollm2.questions import KINDS
from train.smollm2.store import Shards

CPU = torch.device("cpu")

SIZES = {
    **{"asked": 24, "contexts": 6, "translations": 6, "passages": 8, "wave": 16, "answer-tokens": 24},
    **{"write-tokens": 2048, "vocabulary": 96, "measured": 4, "positions": 24},
}


def call(out: Path, target: Path, held_out: Path, *more: object) -> int:
    words = ["--out", out, "--target", target, "--prompts", held_out, "--device", "cpu", "--start", "target", *more]
    words += [word for size, value in SIZES.items() for word in (f"--{size}", value)]
    return main([str(word) for word in words])


class Steps(Clock):
    """A clock that stands still and stops training after a number of steps."""

    def __init__(self, out: Path, left: int) -> None:
        super().__init__(out / "progress.json", "train", minutes=1, now=lambda: 0.0)
        self.left = left

    def share(self) -> float:
        self.left -= 1  # asked once per step
        return 0.5

    def stop(self) -> bool:
        return self.left <= 0

    def over(self) -> bool:
        return False


def train(out: Path, target: Path, answers: Path, *steps: int) -> Path:
    """Train in calls of *steps* steps each; return *out*."""
    out.mkdir(exist_ok=True)
    plan = Plan(vocabulary=96, train_tokens=1024, widths=(64, 256), rate=0.01, warm_up=5, log_seconds=0)
    llama = Llama(target, None, CPU, torch.float32)
    for several in steps:
        torch.manual_seed(0)  # would show in whatever no checkpoint replaces: there must be nothing
        training = Training(out, llama, target, Shards(answers / "answers").read(), plan)
        assert not training.run(Steps(out, several))
    return out


@pytest.fixture(scope="module")
def made(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of all stages; training takes two calls, and a third that finds its time over."""
    out, held_out = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("held_out") / "question.jsonl"
    questions = [  # of two categories, in words of the toy's vocabulary
        {"category": category, "turns": [" ".join(f"word{(first + 7 * step) % 120}" for step in range(20))]}
        for category, first in (("math_reasoning", 1), ("qa", 2), ("math_reasoning", 3), ("qa", 4))
    ]
    held_out.write_text("\n".join(map(json.dumps, questions)) + "\n", encoding="utf-8")
    for stage in ("questions", "answers"):
        assert call(out, toy_target, held_out, "--stage", stage, "--minutes", 10) == 0
    train(out, toy_target, out, 4, 8)
    assert call(out, toy_target, held_out, "--stage", "train", "--minutes", 0) == 0
    for stage in ("pack", "measure"):
        assert call(out, toy_target, held_out, "--stage", stage) == 0
    return out


def test_there_are_questions_of_each_kind_with_an_answer(made: Path) -> None:
    for kind in KINDS:
        questions = Shards(made / "questions" / kind).read()
        assert len(questions) > 3
        assert (questions.prompts == questions.lengths()).all()
    answers = Shards(made / "answers").read()
    assert answers.tokens.dtype == np.uint16
    assert (answers.lengths() > answers.prompts).all()


def test_the_draft_folder_is_one_that_the_recorder_loads(made: Path, toy_target: Path) -> None:
    draft = Eagle3(made / "draft", CPU, torch.float32)
    assert draft.aux_layers == [1, 3, 4]
    assert draft.target_ids.tolist() == np.load(made / "vocabulary.npy").tolist()
    weights = load_file(made / "draft" / "model.safetensors")
    assert weights["lm_head.weight"].dtype == torch.bfloat16
    assert weights["t2d"].nonzero()[:, 0].tolist() == draft.target_ids.tolist()


def test_a_training_that_was_cut_off_goes_on(made: Path, toy_target: Path, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", toy_target, made, 12)
    (one, other) = (load_file(folder / "draft" / "model.safetensors") for folder in (whole, made))
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_the_packed_draft_is_small_and_drafts_the_same(made: Path, toy_target: Path) -> None:
    whole, packed = (made / "draft" / "model.safetensors").stat(), (made / "packed" / "model.packed").stat()
    assert packed.st_size < 0.6 * whole.st_size
    target, answers = Llama(toy_target, None, CPU, torch.float32), Shards(made / "answers").read()
    drafts = [Eagle3(made / name, CPU, torch.float32) for name in ("draft", "packed")]
    same = []
    for index in range(len(answers)):
        ids = torch.from_numpy(answers[index].astype(np.int64))
        _, features = target.prefill(ids[None], target.cache(1, len(ids)))
        first = int(answers.prompts[index]) - 1
        (one, other) = (draft.chains(target.embedding, ids, features[0], first, 3) for draft in drafts)
        same.append((one == other).flatten())
    assert torch.cat(same).float().mean() > 0.8


def test_accept_lengths_are_kept_with_their_trace(made: Path) -> None:
    found = json.loads((made / "accept.json").read_text(encoding="utf-8"))["tokens_a_round"]
    assert set(found) == {"math_reasoning", "qa", "all"}
    assert len(read_trace(made / "accept.npz").category) == 4
    for kinds in found.values():
        for depths in kinds.values():
            assert 1 <= depths["1"] <= 2 and depths["1"] <= depths["7"] <= 8
