"""Parts of the recipe of SmolLM2's draft, each compared with another computation of the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.llama import Llama
from benchmarks.traces.writing import write
from train.smollm2.held_out import RUN, HeldOut
from train.smollm2.lesson import lesson_of, opinions_of
from train.smollm2.loss import score
from train.smollm2.packing import epoch_of, packed
from train.smollm2.plan import STEPS, Plan
from train.smollm2.rounding import LARGEST, rounded
from train.smollm2.saving import new_draft, save_draft
from train.smollm2.store import Documents, Shards

CPU = torch.device("cpu")


def written(target: Llama, folder: Path) -> Documents:
    """Greedy documents of several lengths."""
    prompts = [[5, 6, 7], [9] * 11, list(range(40, 47)), [100, 3]]
    generator = torch.Generator().manual_seed(0)
    documents = [one.ids.tolist() for one in write(target, prompts, 30, frozenset(), 0.0, generator)]
    documents[1] = documents[1][:20]
    shards = Shards(folder)
    shards.append(documents[:2], [len(prompt) for prompt in prompts[:2]])
    shards.append(documents[2:], [len(prompt) for prompt in prompts[2:]])
    return shards.read()


def test_training_accepts_the_drafts_that_the_recorder_accepts(toy_target: Path, tmp_path: Path) -> None:
    """Packed rows and chosen chains change nothing: the recorder judges the same draft one document at a time."""
    target = Llama(toy_target, None, CPU, torch.float32)
    documents = written(target, tmp_path / "documents")
    torch.manual_seed(1)
    vocabulary = torch.arange(3, 143, 2)
    first = new_draft(target, vocabulary, None)
    save_draft(tmp_path / "draft", first, toy_target, [1, 3, 4], vocabulary)
    draft = new_draft(target, vocabulary, tmp_path / "draft")  # as rounded to bfloat16
    recorder = Eagle3(tmp_path / "draft", CPU, torch.float32)
    rows = packed(documents, [[2, 0, 3], [1]], (128,))
    lesson = lesson_of(rows, STEPS, 1.0, np.random.default_rng(0), CPU)
    places = torch.full((target.vocab,), -1)
    places[vocabulary] = torch.arange(len(vocabulary))
    found = score(draft, target, lesson, opinions_of(target, lesson, vocabulary, places), Plan())
    accepted = chains = 0
    for index in range(len(documents)):
        ids = torch.from_numpy(documents[index].astype(np.int64))
        prompt = int(documents.prompts[index])
        with torch.no_grad():
            hidden, features = target.prefill(ids[None], target.cache(1, len(ids)))
            best = target.logits(hidden[0]).argmax(dim=-1)
        drafts = recorder.chains(target.embedding, ids, features[0], prompt - 1, STEPS)
        for chain in range(len(ids) - 1 - prompt):  # the first draft of the last one comes before the document's end
            truth = best[prompt + chain : len(ids) - 1]
            right = drafts[chain][: len(truth)] == truth[:STEPS]
            accepted += int(right.long().cumprod(dim=0).sum())
            chains += 1
    assert accepted > 0
    assert (int(found.accepted), int(found.chains)) == (accepted, chains)


def test_a_batch_has_every_document_whole_and_an_epoch_has_each_once(toy_target: Path, tmp_path: Path) -> None:
    documents = written(Llama(toy_target, None, CPU, torch.float32), tmp_path)
    plan = Plan(widths=(35, 80), train_tokens=160)
    batches = epoch_of(documents, plan, 3)
    assert sorted(one for rows in batches for row in rows for one in row) == [0, 1, 2, 3]
    assert batches == epoch_of(documents, plan, 3)
    for rows in batches:
        batch = packed(documents, rows, plan.widths)
        for row, several in enumerate(rows):
            kept = [batch.ids[row][batch.document[row] == number].tolist() for number in range(len(several))]
            assert kept == [documents[one].tolist() for one in several]


def test_a_held_out_question_is_found_whatever_stands_around_it() -> None:
    words = [f"word{number}" for number in range(40)]
    held_out = HeldOut([" ".join(words), "Who was it?"])
    assert held_out.shares("and " + ", ".join(words[5 : 5 + RUN]).upper())
    assert not held_out.shares(" ".join([*words[5 : 4 + RUN], "other"]))
    assert held_out.shares("So who was it, then?") and not held_out.shares("Who was she?")
    with pytest.raises(ValueError, match="question 1"):
        held_out.check(["one", "who was it"])


def test_rounded_outputs_keep_the_wanted_precision_though_the_weights_do_not() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(24, 96, generator=generator).double()  # 96 inputs, most of them along 24 directions
    inputs = torch.randn(4000, 24, generator=generator).double() @ mixed
    inputs += 0.3 * torch.randn(4000, 96, generator=generator).double()
    matrix = torch.randn(80, 96, generator=generator).double()
    found = rounded(matrix, inputs.T @ inputs, noise=0.02)
    widened = found.widened().double()
    assert found.levels.dtype == torch.int8 and found.levels.abs().max() <= LARGEST
    outputs = inputs @ matrix.T
    error = (inputs @ widened.T - outputs).norm() / outputs.norm()
    assert 0.01 < error < 0.025
    # Each weight rounded to the same steps, without compensation:
    alone = (matrix / found.step).round() * found.step
    assert (inputs @ alone.T - outputs).norm() / outputs.norm() > 2 * error
