"""Equal, tie, wrong or unfinished, by the answer of zero steps to the same request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sglang_adaptive import ties
from sglang_adaptive.sglang_plugin.admin.audit_http import TOGETHER, DecodesAgain
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import AUDITED, UNFINISHED, Report
from tests.loops import in_a_loop

OURS = [5, 8, 7]


def answer(ids: list[int], *places: dict[int, float], reason: str = "length") -> dict[str, Any]:
    """Return an SGLang answer with the most likely tokens of every position, decoded or read, and the chosen one."""
    top = [[[value, token, None] for token, value in place.items()] for place in places]
    chosen = [[place[token], token, None] for token, place in zip(ids, places, strict=False)]
    meta = {f"{side}_{what}": told for side in ("input", "output") for what, told in
            (("top_logprobs", top), ("token_logprobs", chosen))}  # fmt: skip
    return {"output_ids": ids, "prompt_token_ids": [1, 2], "meta_info": {**meta, "finish_reason": {"type": reason}}}


def other(second: dict[int, float], token: int = 6, reason: str = "length") -> dict[str, Any]:
    return answer([5, token, 7], {5: -0.1, 9: -3.0}, second, {7: -0.2, 1: -2.0}, reason=reason)


FAR, NEAR, MOVED = {6: -0.2, 8: -3.0}, {6: -0.7, 8: -0.75}, {6: -0.72, 8: -0.78}


async def over(again: DecodesAgain) -> None:
    """Start, and wait for the end."""
    again.begin()
    assert again._task is not None
    await again._task


class Server:
    """A tokenizer manager and schedulers with one finished request and scripted answers."""

    gracefully_exit = False

    def __init__(self, *answers: Any) -> None:
        self._answers, self.asked, self.reports = list(answers), [], []  # type: ignore[var-annotated]
        self._finished: list[Any] = [{"request": "mine", "prompt": [1, 2], "output": OURS, "sampling": {}, "epoch": 3}]

    async def generate_request(self, request: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(request)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, Exception):
            raise found
        yield found

    async def take(self) -> list[dict[str, Any]]:
        found = self._finished.pop() if self._finished else None
        return [
            {"dp_rank": 0, "is_on": False, "finished": None},
            {"dp_rank": 1, "is_on": bool(found), "finished": found},
        ]

    async def send(self, report: Report) -> None:
        self.reports.append(report)

    async def audited(self) -> Report:
        await over(DecodesAgain(lambda: self, self.take, self.send))
        (report,) = self.reports
        assert isinstance(report, Report) and (report.replica, report.epoch, report.request) == (1, 3, "mine")
        return report


@in_a_loop
async def test_an_equal_text_is_asked_for_once_without_log_probabilities() -> None:
    server = Server(answer(OURS))
    assert (await server.audited()).verdict == ties.EQUAL
    (asked,) = server.asked
    assert asked.rid.startswith(AUDITED) and (asked.routed_dp_rank, asked.input_ids) == (1, [1, 2])
    assert not asked.return_logprob and not asked.log_metrics and asked.no_logs


@pytest.mark.parametrize(
    ("answers", "verdict", "gap"),
    [
        ([other(FAR)], ties.WRONG, 2.8),
        ([other(NEAR)], ties.WRONG, 0.05),
        ([other(NEAR), other(NEAR), other(MOVED)], ties.TIE, 0.05),
        ([other(NEAR)] * (2 + TOGETHER) + [other(NEAR), other(MOVED)], ties.TIE, 0.05),
        ([other(NEAR)] * (3 + 2 * TOGETHER) + [other(MOVED)], ties.TIE, 0.05),
        ([other(FAR), other(FAR), other({8: -0.2, 6: -3.0}, token=8)], ties.TIE, None),
        ([answer([5], {5: -0.1})], ties.WRONG, None),
    ],
    ids=[
        *("far", "no noise", "within the noise", "within the noise of more tokens", "within the noise of reading"),
        *("one of their own texts", "it ends"),
    ],
)
@in_a_loop
async def test_a_text_that_differs(answers: list[Any], verdict: str, gap: float | None) -> None:
    server = Server(*answers)
    report = await server.audited()
    assert report.verdict == verdict and report.gap == (gap if gap is None else pytest.approx(gap))
    plain, *references = server.asked
    assert not plain.return_logprob and all(request.return_logprob for request in references)
    anew = [place for place, request in enumerate(references) if request.extra_key]
    assert anew in ([], [1 + TOGETHER]), "the prompt is computed anew once, where more tokens are asked for"
    if verdict == ties.WRONG:
        assert anew and len(references) == 2 * (1 + TOGETHER) + 1, "no token is wrong before the noise is measured"
        read = references[-1]
        assert (read.input_ids, read.logprob_start_len) == ([1, 2, *answers[-1]["output_ids"]], 1)


@pytest.mark.parametrize(
    "answers",
    [[other(FAR, reason="abort")], [other(FAR), other(FAR), other(FAR, reason="abort")], [ValueError("too long")]],
    ids=["at once", "later", "refused"],
)
@in_a_loop
async def test_what_did_not_come_to_its_end_is_not_compared(
    answers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert (await Server(*answers).audited()).verdict == UNFINISHED
    assert ("adaptive: a finished request could not be decoded again" in caplog.text) == isinstance(
        answers[0], Exception
    )


@in_a_loop
async def test_it_ends_at_once_where_nobody_wants_it() -> None:
    server = Server(answer(OURS))
    server._finished.clear()
    again = DecodesAgain(lambda: server, server.take, server.send)
    for _ in range(2):  # a later configuration restarts it
        await over(again)
    assert not server.asked and not server.reports


@in_a_loop
async def test_it_stops_when_the_server_is_told_to_end() -> None:
    """SGLang waits for every request, also for those of the audit."""
    server, stopped = Server(answer(OURS)), []

    async def generate_request(request: Any) -> AsyncIterator[dict[str, Any]]:
        server.asked.append(request)
        server.gracefully_exit = True
        try:
            yield await asyncio.Future()
        finally:
            stopped.append(request)  # where SGLang aborts it

    server.generate_request = generate_request  # type: ignore[method-assign]
    again = DecodesAgain(lambda: server, server.take, server.send)
    async with asyncio.timeout(5):
        await over(again)
        await asyncio.sleep(0)  # the cancelled task runs once more
        server._finished = server._finished or [{"request": "another", "prompt": [1], "output": OURS}]
        await over(again)  # a configuration that arrives now
    assert len(server.asked) == len(stopped) == 1 and not server.reports


@in_a_loop
async def test_a_fault_ends_the_audit_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def lost() -> list[dict[str, Any]]:
        raise ConnectionError("no scheduler")

    await over(DecodesAgain(lambda: Server(), lost, lost))  # type: ignore[arg-type]
    assert "adaptive: disabled audit after an error" in caplog.text and "no scheduler" in caplog.text
