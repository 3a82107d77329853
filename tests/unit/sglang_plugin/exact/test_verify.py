"""Rounds of a toy model, whose next token depends on the previous one, through SGLang's own sampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling import custom_logit_processor as of_sglang
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry
from sglang.srt.speculative import eagle_utils, spec_utils

from benchmarks.exact_verify import PROMPT, WRITTEN, Batch, chain, running
from sglang_adaptive.lab.cpu_engine.kernels.sample import murmur_hash32_cpu
from sglang_adaptive.lab.cpu_engine.kernels.tree import verify_tree_greedy_cpu
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stages.exact.rows import reads_request
from sglang_adaptive.sglang_plugin.stages.exact.verify import ExactVerify

VOCABULARY = 12
ALPHA = 1e-4
"""Chance that a correct distribution is rejected, for each comparison in the tests."""


class _Forbids(CustomLogitProcessor):  # type: ignore[misc]
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            logits[row, parameters["forbidden"]] = -float("inf")
        return logits


class _Counts(CustomLogitProcessor):  # type: ignore[misc]
    """Selects the token whose id is the number of tokens that its request has written."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            logits[row] = -float("inf")
            logits[row, len(parameters["__req__"].output_ids) % VOCABULARY] = 0.0
        return logits


def _accept(topk: int = -1, **named: Any) -> Any:
    named = {name.replace("retrieve", "retrive"): value for name, value in named.items()}
    verify_tree_greedy_cpu(**named)
    return named["predicts"], named["accept_index"], named["accept_token_num"]


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExactVerify]:
    monkeypatch.setattr(eagle_utils, "verify_tree_greedy_func", _accept)
    monkeypatch.setattr(spec_utils, "SIMULATE_ACC_LEN", 0)
    monkeypatch.setattr(sampler, "sampler_softmax", lambda logits: torch.softmax(logits, -1))
    monkeypatch.setattr(sampler, "murmur_hash32", murmur_hash32_cpu)

    def close(guard: Guard, error: Exception) -> None:
        raise error

    monkeypatch.setattr(Guard, "close", close)
    torch.manual_seed(5)
    with running("cpu") as worker:
        yield ExactVerify(worker)


class Toy:
    """Requests that decode from a table of logits [previous token, token]."""

    def __init__(self, exact: ExactVerify, size: int, processor: Any = None, **sampling: Any) -> None:
        self.exact, self.table = exact, torch.randn(VOCABULARY, VOCABULARY) * 2
        self.batch = Batch(size, VOCABULARY, "cpu", **sampling)
        info = self.batch.kept
        if processor is not None:
            info.has_custom_logit_processor = True
            info.custom_logit_processor = {1: ProcessorEntry(processor, list(range(size)), torch.arange(size))}
            info.custom_params = [{"forbidden": [1, 3], "__req__": req} for req in self.batch.reqs]

    def round(self, width: int) -> list[list[int]]:
        """Verify likely drafts, *width* - 1 per request; return each request's accepted tokens."""
        batch = self.batch
        roots = torch.tensor([req.output_ids[-1] for req in batch.reqs])
        batch.seq_lens = torch.tensor([PROMPT + len(req.output_ids) - 1 for req in batch.reqs])
        nodes = [roots]
        for _ in range(width - 1):
            nodes.append(torch.multinomial(self.table[nodes[-1]].softmax(-1), 1).flatten())
        if batch.kept.penalizer_orchestrator.is_required:
            self.exact.count_penalties(lambda _: None, batch)
        verify = chain(batch, width, VOCABULARY, torch.stack([*nodes[1:], roots], 1))
        verify.draft_token = torch.stack(nodes, 1).flatten()
        self.logits = LogitsProcessorOutput(self.table[verify.draft_token].clone())
        with batch.forward():
            found = self.exact.accepted(verify, batch, self.logits, None, None)
        assert found is not None
        predict, lengths, _ = found
        rows = zip(predict.view(-1, width).tolist(), lengths.tolist(), strict=True)
        accepted = [tokens[:length] for tokens, length in rows]
        for req, tokens in zip(batch.reqs, accepted, strict=True):
            req.output_ids += tokens
        return accepted


WAYS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.15},
    {"temperature": 1.4, "top_k": 7, "top_p": 0.9, "min_p": 0.05},
]


def _law(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Any:
    chances, places = (logits / temperature).softmax(-1).sort(descending=True)
    kept = (torch.arange(VOCABULARY) < (top_k or VOCABULARY)) & (chances.cumsum(0) - chances <= top_p)
    kept &= chances >= chances[0] * min_p
    return torch.zeros(VOCABULARY).scatter_(0, places, chances * kept / (chances * kept).sum())


def _probability(counts: torch.Tensor, law: torch.Tensor) -> float:
    assert counts[law == 0].sum() == 0, "a token came that was ruled out"
    wanted = law * counts.sum()
    rare = wanted < 5
    pairs = [(counts[~rare], wanted[~rare]), (counts[rare].sum()[None], wanted[rare].sum()[None])]
    terms = torch.cat([(seen - want) ** 2 / want for seen, want in pairs if want.sum() > 0])
    half = torch.tensor((len(terms) - 1) / 2)
    return float(torch.special.gammaincc(half, terms.sum() / 2)) if len(terms) > 1 else 1.0


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("width", [1, 4])
def test_tokens_come_as_often_as_the_law_says(exact: ExactVerify, width: int, how: dict[str, Any]) -> None:
    """Covers a round's first tokens, and tokens after a drawn draft."""
    toy = Toy(exact, 3000, **how)
    for req in toy.batch.reqs:
        req.output_ids[-1] = 2
    accepted = toy.round(width)
    for place in range(min(width, 3)):
        seen = torch.zeros(VOCABULARY, VOCABULARY)
        for tokens in accepted:
            if len(tokens) > place:
                seen[[2, *tokens][place], tokens[place]] += 1
        assert seen.sum() >= 3000 / 8**place
        for before in range(VOCABULARY):
            if seen[before].sum() >= 50:
                assert _probability(seen[before], _law(toy.table[before], **how)) > ALPHA, (place, before)


def test_a_processor_that_reads_its_request_gets_one_token_a_round(
    exact: ExactVerify, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(exact, 2, _Counts(), temperature=0.0)
    with caplog.at_level("INFO"):
        for number in range(5):
            assert toy.round(4) == [[(WRITTEN + number) % VOCABULARY]] * 2
    assert [record.getMessage() for record in caplog.records if "one token per round" in record.getMessage()] == [
        "adaptive: requests with _Counts get one token per round, because it reads the text of its request"
    ]


def test_logits_are_left_for_logprobs(exact: ExactVerify) -> None:
    """Logprobs need logits with penalties, biases and processors applied, not probabilities."""
    toy = Toy(exact, 3, _Forbids(), temperature=0.7, logit_bias={"5": 2.0})
    toy.batch.return_logprob = True
    toy.round(3)
    logits = toy.logits.next_token_logits
    before = torch.tensor([req.output_ids[WRITTEN - 1] for req in toy.batch.reqs])
    wanted = toy.table[before].clone()
    wanted[:, 5] += 2.0
    wanted[:, [1, 3]] = -float("inf")
    assert torch.equal(logits[::3], wanted)


def test_plainly_greedy_rounds_are_left_to_sglang(exact: ExactVerify) -> None:
    batch = Batch(2, VOCABULARY, "cpu", temperature=0.0)
    with batch.forward():
        assert exact.accepted(None, batch, None, None, None) is None


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({}, None),
        ({"speculative_use_rejection_sampling": True}, "--speculative-use-rejection-sampling"),
        ({"speculative_accept_threshold_acc": 0.9}, "--speculative-accept-threshold-single or -acc"),
    ],
    ids=str,
)
def test_a_launch_may_ask_for_another_verify(
    launch: dict[str, Any], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with running("cpu", **launch) as worker:
        found = ExactVerify.where_it_can(worker)
    assert (found == []) is (words is not None)
    assert (words or "") in caplog.text and ("adaptive: exact is off: " in caplog.text) is (found == [])


def test_the_configuration_restores_sglangs_verify(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.json"
    file.write_text('{"exact": false, "1": {"candidate_steps": [1, 3]}}')
    with running("cpu", speculative_adaptive_config=str(file)) as worker:
        assert ExactVerify.where_it_can(worker) == []


KEY = "__req__"


def _by_a_helper(parameters: dict[str, Any]) -> Any:
    return parameters[KEY]


class _Stateless(of_sglang.CustomLogitProcessor):  # type: ignore[misc]
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class _ByAHelper(_Stateless):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return [_by_a_helper(one) for one in custom_param_list] and logits


class _ByAMethod(_Stateless):
    def _text(self, parameters: Any) -> Any:
        return [one for one in (parameters.get("__req__"),)]

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return self._text(custom_param_list[0]) and logits


class _NotPython(_Stateless):
    __call__ = staticmethod(max)


class _Inherits(of_sglang.Qwen3ThinkingBudgetLogitProcessor):  # type: ignore[misc]
    pass


LOOKING = (_ByAHelper, _ByAMethod, _NotPython, _Inherits, of_sglang.DeepseekOCRNoRepeatNGramLogitProcessor)


@pytest.mark.parametrize("processor", [_Stateless, of_sglang.DisallowedTokensLogitsProcessor, *LOOKING])
def test_which_processors_look_at_their_request(processor: type) -> None:
    assert reads_request(processor) is (processor in LOOKING)
