"""Rows of a verify get the penalties that SGLang's penalizers give token by token, bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

from sglang_adaptive.sglang_plugin.stages.exact.penalties import HostText, Sums

VOCABULARY, PROMPT, STOP = 23, 5, 7
KINDS: list[dict[str, Any]] = [
    {},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.3, "frequency_penalty": 0.1},
    {"repetition_penalty": 1.3, "min_new_tokens": 9},
    {"frequency_penalty": 1.1, "presence_penalty": 0.6, "repetition_penalty": 0.8, "min_new_tokens": 14},
]


@dataclass(eq=False)
class _Req:
    sampling_params: Any
    origin_input_ids: list[int] = field(default_factory=lambda: [1] * PROMPT)
    output_ids: list[int] = field(default_factory=list)
    eos_token_ids: set[int] = field(default_factory=lambda: {STOP})
    tokenizer: Any = field(default_factory=lambda: SimpleNamespace(additional_stop_token_ids=None, eos_token_id=STOP))


class _Batch(SimpleNamespace):
    """The parts of a batch that SGLang's penalizers and ours read."""

    def __init__(self, kinds: list[dict[str, Any]]) -> None:
        none = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
        reqs = [_Req(SimpleNamespace(stop_token_ids=None, **{**none, **kind})) for kind in kinds]
        super().__init__(reqs=reqs, device="cpu", req_pool_indices=torch.arange(len(reqs)) + 2)
        self.renew()

    def renew(self) -> None:
        """Restart the penalizers, like SGLang in each chunk of a prefill."""
        kinds = {
            *(penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedMinNewTokensPenalizer),
            *(penaltylib.BatchedPresencePenalizer, penaltylib.BatchedRepetitionPenalizer),
        }
        orchestrator = penaltylib.BatchedPenalizerOrchestrator(VOCABULARY, self, kinds)
        temperatures = torch.ones(len(self.reqs), 1)
        self.sampling_info = SimpleNamespace(penalizer_orchestrator=orchestrator, temperatures=temperatures)


def _penalised(kind: dict[str, Any], text: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Return one row of *logits* with the penalties of a plain decode that wrote *text* token by token."""
    orchestrator = _Batch([kind]).sampling_info.penalizer_orchestrator
    for token in text:
        orchestrator.cumulate_output_tokens(torch.tensor([token]))
    additive = torch.zeros(1, VOCABULARY)
    orchestrator.accumulate_additive_penalties(additive)
    row = logits.clone()[None].add_(additive)
    scaling = orchestrator.accumulate_scaling_penalties()
    if scaling is not None:
        apply_scaling_penalties(row, scaling)
    return row[0]


def _chain(tokens: list[list[int]], lengths: list[int]) -> Any:
    width = len(tokens[0])
    return SimpleNamespace(
        draft_token=torch.tensor(tokens).flatten(), draft_token_num=width, tree_topk=1,
        positions=(torch.tensor(lengths)[:, None] + torch.arange(width)).flatten(),
    )  # fmt: skip


@pytest.mark.parametrize("pending", [False, True], ids=["every result is known", "the latest result is pending"])
@pytest.mark.parametrize("retract_at", [None, 4])
def test_every_row_of_a_chain(pending: bool, retract_at: int | None) -> None:
    """Requests join and leave, and one change of the batch brings its requests back from a retraction."""
    draw = random.Random(3)
    batch, sums, places = _Batch(KINDS), Sums(), list(range(len(KINDS)))
    everyone = list(batch.reqs)
    written = [[draw.randrange(VOCABULARY)] for _ in KINDS]  # the last one is the root of the next verify
    unknown = [1 if pending else 0] * len(KINDS)
    for number in range(13):
        width = (4, 1, 8, 2)[number % 4]
        if number == retract_at:
            unknown = [0] * len(KINDS)
        for req, whole, behind in zip(everyone, written, unknown, strict=True):
            req.output_ids = whole[: len(whole) - behind]
        if number == retract_at:
            batch.renew()
            sums.forget(batch.reqs)
        if number in (6, 9):  # some leave; then they are back, with the text that they had
            places = [4, 1] if number == 6 else [1, 2, 0, 4, 3]
            unknown = [0] * len(KINDS) if number == 9 else unknown
            for req, whole, behind in zip(everyone, written, unknown, strict=True):
                req.output_ids = whole[: len(whole) - behind]
            batch.reqs = [everyone[place] for place in places]
            batch.renew()
        lengths = [PROMPT + len(written[place]) - 1 for place in places]
        drafts = [[draw.randrange(VOCABULARY) for _ in range(width - 1)] for _ in places]
        verify = _chain([[written[at][-1], *more] for at, more in zip(places, drafts, strict=True)], lengths)
        batch.seq_lens = torch.tensor(lengths)
        logits = torch.randn(len(places) * width, VOCABULARY)
        plain = logits.clone()
        sums.apply(batch, verify, logits)
        for request, place in enumerate(places):
            for row in range(width):
                at = request * width + row
                wanted = _penalised(KINDS[place], written[place] + drafts[request][:row], plain[at])
                assert torch.equal(logits[at], wanted), (number, request, row)
        accepted = [draw.randrange(width) for _ in places]
        nodes = torch.arange(width)
        starts = torch.arange(len(places))[:, None] * width
        index = torch.where(nodes <= torch.tensor(accepted)[:, None], starts + nodes, -1).to(torch.int32)
        sums.count(batch, verify, index)
        for request, (place, kept) in enumerate(zip(places, accepted, strict=True)):
            written[place] += [*drafts[request][:kept], draw.randrange(VOCABULARY)]
            unknown[place] = kept + 1 if pending else 0


def test_penalizers_count_each_token_once() -> None:
    """Whenever they are asked to, and again from the start if they are new."""
    batch, text, written = _Batch(KINDS), HostText(), [3, 3, 9, 3, 11, 9]
    for number in (0, 2, 2, 5):
        for req in batch.reqs:
            req.output_ids = written[:number]
        text.count(batch)
    batch.renew()
    for req in batch.reqs:
        req.output_ids = written
    text.count_again(batch)
    for request, kind in enumerate(KINDS):
        row, orchestrator = torch.randn(VOCABULARY), batch.sampling_info.penalizer_orchestrator
        rows = row.repeat(len(KINDS), 1)
        additive = torch.zeros_like(rows)
        orchestrator.accumulate_additive_penalties(additive)
        apply_scaling_penalties(rows.add_(additive), orchestrator.accumulate_scaling_penalties())
        assert torch.equal(rows[request], _penalised(kind, written, row))


def test_a_tree_is_penalised_along_its_paths() -> None:
    kind = KINDS[-1]
    batch = _Batch([kind])
    batch.reqs[0].output_ids = [3, 3, 9]
    batch.seq_lens = torch.tensor([PROMPT + 2])
    nodes, depths = [9, 4, 3, 3, 9, 4], [0, 1, 1, 2, 2, 3]
    verify = SimpleNamespace(
        draft_token=torch.tensor(nodes), draft_token_num=6, tree_topk=-1,
        positions=batch.seq_lens + torch.tensor(depths),
        retrieve_next_token=torch.tensor([[1, 3, -1, 5, -1, -1]]),
        retrieve_next_sibling=torch.tensor([[-1, 2, -1, 4, -1, -1]]),
    )  # fmt: skip
    plain = torch.randn(6, VOCABULARY)
    logits = plain.clone()
    Sums().apply(batch, verify, logits)
    for row, path in enumerate([[], [4], [3], [4, 3], [4, 9], [4, 3, 4]]):
        assert torch.equal(logits[row], _penalised(kind, [3, 3, 9, *path], plain[row])), row
