"""The sampler's parameters for a verify's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.sampling import custom_logit_processor as of_sglang
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo

from sglang_adaptive.sglang_plugin.stages.exact.rows import Rows, reads_request, without_drafts

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


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (_Stateless, False),
        (of_sglang.DisallowedTokensLogitsProcessor, False),
        (_ByAHelper, True),
        (_ByAMethod, True),
        (_NotPython, True),
        (_Inherits, True),
        (of_sglang.DeepseekOCRNoRepeatNGramLogitProcessor, True),
    ],
)
def test_which_processors_look_at_their_request(processor: type, expected: bool) -> None:
    assert reads_request(processor) is expected


def _info() -> SamplingBatchInfo:
    entries = {
        1: ProcessorEntry(_Stateless(), [0, 2], torch.tensor([0, 2])),
        2: ProcessorEntry(_ByAMethod(), [1], torch.tensor([1])),
    }
    return SamplingBatchInfo(
        temperatures=torch.tensor([[0.5], [1.0], [2.0]]), top_ps=torch.tensor([0.1, 0.2, 0.3]),
        top_ks=torch.tensor([1, 2, 3]), min_ps=torch.zeros(3), is_all_greedy=False, is_any_greedy=True,
        need_top_p_sampling=True, need_top_k_sampling=True, need_min_p_sampling=False, vocab_size=9, device="cpu",
        has_custom_logit_processor=True, custom_logit_processor=entries, custom_params=["a", "b", "c"],
    )  # fmt: skip


def test_a_row_has_the_parameters_of_its_request() -> None:
    info, rows = _info(), Rows()
    made = rows.of(info, 2)
    assert made.top_ks.tolist() == [1, 1, 2, 2, 3, 3] and len(made) == 6
    assert made.temperatures.flatten().tolist() == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0]
    assert made.custom_params == ["a", "a", "b", "b", "c", "c"] and made.sampling_seed is None
    found = {key: (entry.rows, entry.indices.tolist()) for key, entry in made.custom_logit_processor.items()}
    assert found == {1: ([0, 1, 4, 5], [0, 1, 4, 5]), 2: ([2], [2])}
    assert rows.of(info, 2) is made
    assert len(rows.of(info, 3)) == 9
    info.temperatures = info.temperatures.clone()  # happens when a request joins or leaves
    assert rows.of(info, 3).temperatures.shape == (9, 1)


def test_requests_that_are_looked_at_accept_no_draft() -> None:
    links = torch.tensor([[1, -1], [1, -1], [1, -1]])
    cut = without_drafts(_info(), links)
    assert cut is not None
    assert cut.tolist() == [[1, -1], [-1, -1], [1, -1]] and links[1, 0] == 1
    stateless = _info()
    stateless.custom_logit_processor = {1: _info().custom_logit_processor[1]}  # type: ignore[index]
    assert without_drafts(stateless, links) is None
