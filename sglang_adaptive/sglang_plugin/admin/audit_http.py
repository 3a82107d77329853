"""The HTTP server's part of the audit: request the text of finished requests again at zero steps, and compare.

It works like the command ``audit``. A text that differs from the zero-step text of its prompt is a tie if the
log-probabilities of both tokens are within rounding noise, and wrong otherwise. The noise is the difference between
zero-step answers run alone and several at once. A token that also occurs in a zero-step answer is a tie. Before a
token is called wrong, the noise is measured over more tokens than a short text has, and against the same tokens read as
a prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from sglang_adaptive import ties
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import AUDITED, MOST_TOKENS, UNFINISHED, Report

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Time between checks for a finished request while there is none."""
END_SECONDS = 0.1
"""Time between checks whether the server was told to end."""
MOST_SECONDS = 120.0
"""Time limit for one text."""
READ_SECONDS = 30.0
"""Time limit for the text that is read as a prompt, which is one prefill."""
TOGETHER = 8
"""Zero-step answers run at once, besides one alone, where a text differs; fewer for long texts."""
MEASURED = 256
"""Tokens after the prompt over which the noise is measured before a token is called wrong."""
Finished = Mapping[str, Any]
"""What ``audit_scheduler.question`` returns, plus "epoch" and "replica"."""


class _Unfinished(Exception):
    """A text was not decoded again to its end."""


class DecodesAgain:
    """Decodes finished requests again, one at a time, while any scheduler has the audit on."""

    def __init__(
        self,
        manager: Callable[[], Any],
        take: Callable[[], Awaitable[list[dict[str, Any]]]],
        send: Callable[[Report], Awaitable[Any]],
    ) -> None:
        """*manager* returns SGLang's TokenizerManager.

        *take* returns the ``Audits.take`` of every replica, each with "dp_rank"; *send* sends them a report.
        """
        self._manager, self._take, self._send = manager, take, send
        self._task: asyncio.Task[None] | None = None
        self._noise = 0.0
        """Largest difference between answers at zero steps so far, in nats."""
        self._failed = False

    def begin(self) -> None:
        """Start in the running event loop. The task ends by itself when no scheduler has the audit on."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._until_the_end())

    async def _until_the_end(self) -> None:
        """Audit until the server is told to end: it would wait for each request, and there would always be another."""
        work = asyncio.create_task(self._run())
        while not work.done() and not self._manager().gracefully_exit:
            await asyncio.wait({work}, timeout=END_SECONDS)
        work.cancel()  # SGLang aborts the requests of a cancelled task

    async def _run(self) -> None:
        try:
            answers = await self._take()
            while any(answer["is_on"] for answer in answers):
                found = [{**one["finished"], "replica": one["dp_rank"]} for one in answers if one["finished"]]
                for finished in found:
                    await self._send(await self._audited(finished))
                if not found:
                    await asyncio.sleep(POLL_SECONDS)
                answers = await self._take()
        except Exception:
            logger.exception("adaptive: disabled audit after an error; the server goes on without it")

    async def _audited(self, finished: Finished) -> Report:
        """Return the report on one finished request."""
        about = (finished["replica"], finished["epoch"], finished["request"])
        body = {"input_ids": finished["prompt"], "sampling_params": finished["sampling"]}
        ours = finished["output"]
        try:
            (plain,) = await self._answers(finished, body, 1)
            if plain["output_ids"] == ours:
                return Report(*about, ties.EQUAL)
            known = await self._references(finished, ties.as_reference(body))
            parted, noise = await asyncio.to_thread(_compared, ours, known)  # up to a tenth of a second
            self._noise = max(self._noise, noise)
            if parted is None:
                return Report(*about, ties.TIE, self._noise)
            if parted.gap > ties.width(self._noise):
                self._noise = max(self._noise, await self._measured(finished))
        except _Unfinished:
            return Report(*about, UNFINISHED)
        verdict = ties.TIE if parted.gap <= ties.width(self._noise) else ties.WRONG
        gap = None if parted.own is None or parted.other is None else parted.gap
        return Report(*about, verdict, self._noise, parted.at, gap)

    async def _measured(self, finished: Finished) -> float:
        """Return the noise of zero steps after the prompt, in nats.

        The text itself may be too short to measure it, and prompts in the cache were computed in other chunks.
        """
        sampling = {"temperature": 0, "max_new_tokens": MEASURED, "ignore_eos": True}
        body = ties.as_reference({"input_ids": finished["prompt"], "sampling_params": sampling})
        known = await self._references(finished, body, extra_key=uuid4().hex)  # shares no cached prompt
        body = ties.as_prompt(finished["prompt"], known[0]["output_ids"])
        (read,) = await self._answers(finished, body, 1, READ_SECONDS)
        return max(await asyncio.to_thread(_noise, known), ties.noise_of_reading(known[0], read))

    async def _references(self, finished: Finished, body: Mapping[str, Any], **more_alone: str) -> list[ties.Answer]:
        """Return one zero-step answer run alone, with *more_alone* in its body, and several run at once."""
        together = max(2, min(TOGETHER, MOST_TOKENS // (len(finished["prompt"]) + len(finished["output"]))))
        alone = await self._answers(finished, {**body, **more_alone}, 1)
        return [*alone, *await self._answers(finished, body, together)]

    async def _answers(
        self, finished: Finished, body: Mapping[str, Any], at_once: int, seconds: float = MOST_SECONDS
    ) -> list[ties.Answer]:
        """Return *at_once* answers to *body*. Raises _Unfinished if one is incomplete or takes over *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.gather(*(self._answer(finished["replica"], body) for _ in range(at_once)))
        except Exception as error:
            if not self._failed:
                self._failed = True
                logger.warning("adaptive: a finished request could not be decoded again", exc_info=True)
            raise _Unfinished from error
        if not all(map(ties.is_whole, found)):
            raise _Unfinished
        return found

    async def _answer(self, replica: int, body: Mapping[str, Any]) -> ties.Answer:
        from sglang.srt.managers.io_struct import GenerateReqInput

        # Keep it out of the server's request metrics and log.
        hidden = {"log_metrics": False, "no_logs": True}
        request = GenerateReqInput(rid=f"{AUDITED}{uuid4().hex}", routed_dp_rank=replica, **hidden, **body)
        (answer,) = [answer async for answer in self._manager().generate_request(request)]
        return answer  # type: ignore[no-any-return]


def _compared(ours: Sequence[int], known: Sequence[ties.Answer]) -> tuple[ties.Parting | None, float]:
    """Return where *ours* diverges from the nearest answer, and the noise of all answers."""
    return ties.nearest(ours, known)[0], _noise(known)


def _noise(known: Sequence[ties.Answer]) -> float:
    """Return the largest difference between the first answer and the others, in nats."""
    return max(ties.noise(known[0], one) for one in known[1:])
