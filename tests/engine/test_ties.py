"""What the campaign counts as a tie, on a server without speculation."""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.campaign.asking import is_tie


def test_a_tie_is_as_wide_as_the_two_tokens_lie_apart(plain: CpuServer) -> None:
    body = {"text": "the house", "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}}
    answer = plain.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": 2})
    at = 3
    best, second = answer["meta_info"]["output_top_logprobs"][at]
    other = {"output_ids": [*answer["output_ids"][:at], second[1], 5]}
    for width, tie in ((1.01, True), (0.99, False)):
        nats = width * (best[0] - second[0])
        assert is_tie(plain, body, other, nats) is tie
        assert is_tie(plain, {**body, "text": [body["text"]] * 2}, [answer, other], nats) is tie
    assert not is_tie(plain, body, "refused", 1.0)
