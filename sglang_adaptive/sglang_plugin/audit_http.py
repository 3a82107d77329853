"""The HTTP server's part of the audit: it asks for the text of finished requests again, at zero steps, and compares.

It does so as the command ``audit`` does. A text that differs from what zero steps make of its prompt is a tie where
the log-probabilities of both tokens lie as near as rounding decides, by the differences between zero steps alone and
several at once, and wrong otherwise. A token that zero steps take themselves in one of their answers is a tie. Before a
token is called wrong, that difference is measured over more tokens than a short text has, and beside what zero steps
read there as a prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from sglang_adaptive import ties
from sglang_adaptive.sglang_plugin.audit_scheduler import AUDITED, MOST_TOKENS, UNFINISHED, Report

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Time between two looks for a finished request while there is none."""
MOST_SECONDS = 120.0
"""For one text, after which it is given up."""
READ_SECONDS = 30.0
"""For the text that is read as a prompt, which is one prefill."""
TOGETHER = 8
"""Answers of zero steps at once beside one alone, where a text differs; fewer for long ones."""
MEASURED = 256
"""Tokens after the prompt of which the noise is measured before a token is called wrong."""

Finished = Mapping[str, Any]
"""What ``finished.question`` returns, with "epoch" and "replica"."""


class DecodesAgain:
    """Decodes finished requests again, one after the other, as long as a scheduler has the audit on."""

    def __init__(
        self,
        manager: Callable[[], Any],
        take: Callable[[], Awaitable[list[dict[str, Any]]]],
        send: Callable[[Report], Awaitable[Any]],
    ) -> None:
        """*manager* returns SGLang's TokenizerManager.

        *take* returns the answers of ``Audits.take`` of all replicas, each with "dp_rank"; *send* sends them a report.
        """
        self._manager, self._take, self._send = manager, take, send
        self._task: asyncio.Task[None] | None = None
        self._noise = 0.0
        """Largest difference between two answers of zero steps so far, in nats."""
        self._failed = False

    def begin(self) -> None:
        """Begin, in the running event loop. It ends by itself, and at once, when no scheduler has the audit on."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

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
            logger.exception("adaptive: no finished request is audited from here on")

    async def _audited(self, finished: Finished) -> Report:
        """Return what comes of one finished request."""
        about = (finished["replica"], finished["epoch"], finished["request"])
        body = {"input_ids": finished["prompt"], "sampling_params": finished["sampling"]}
        ours = finished["output"]
        plain = await self._answers(finished, body, 1)
        if plain is not None and plain[0]["output_ids"] == ours:
            return Report(*about, ties.EQUAL)
        known = None if plain is None else await self._references(finished, ties.as_reference(body))
        if known is None:
            return Report(*about, UNFINISHED)
        parted, noise = await asyncio.to_thread(_compared, ours, known)  # up to a tenth of a second
        self._noise = max(self._noise, noise)
        if parted is None:
            return Report(*about, ties.TIE, self._noise)
        if parted.gap > ties.width(self._noise):
            if (noise := await self._measured(finished)) is None:  # type: ignore[assignment]
                return Report(*about, UNFINISHED)
            self._noise = max(self._noise, noise)
        verdict = ties.TIE if parted.gap <= ties.width(self._noise) else ties.WRONG
        gap = None if parted.own is None or parted.other is None else parted.gap
        return Report(*about, verdict, self._noise, parted.at, gap)

    async def _measured(self, finished: Finished) -> float | None:
        """Return how much zero steps differ from themselves after the prompt, in nats; None where they did not answer.

        The text itself may be too short to say, and prompts in the cache were computed in other chunks.
        """
        sampling = {"temperature": 0, "max_new_tokens": MEASURED, "ignore_eos": True}
        body = ties.as_reference({"input_ids": finished["prompt"], "sampling_params": sampling})
        known = await self._references(finished, body, extra_key=uuid4().hex)  # of no other prompt in the cache
        if known is None:
            return None
        body = ties.as_prompt(finished["prompt"], known[0]["output_ids"])
        read = await self._answers(finished, body, 1, READ_SECONDS)
        if read is None:
            return None
        return max(await asyncio.to_thread(_noise, known), ties.noise_of_reading(known[0], read[0]))

    async def _references(
        self, finished: Finished, body: Mapping[str, Any], **more_alone: str
    ) -> list[ties.Answer] | None:
        """Return the answers of zero steps alone, with *more_alone* in its body, and of several at once."""
        together = max(2, min(TOGETHER, MOST_TOKENS // (len(finished["prompt"]) + len(finished["output"]))))
        alone = await self._answers(finished, {**body, **more_alone}, 1)
        more = None if alone is None else await self._answers(finished, body, together)
        return None if alone is None or more is None else [*alone, *more]

    async def _answers(
        self, finished: Finished, body: Mapping[str, Any], at_once: int, seconds: float = MOST_SECONDS
    ) -> list[ties.Answer] | None:
        """Return so many answers to *body*; None where one did not come to its end, or not in *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                found = await asyncio.gather(*(self._answer(finished["replica"], body) for _ in range(at_once)))
        except Exception:
            if not self._failed:
                self._failed = True
                logger.warning("adaptive: a finished request could not be decoded again", exc_info=True)
            return None
        return found if all(map(ties.is_whole, found)) else None

    async def _answer(self, replica: int, body: Mapping[str, Any]) -> ties.Answer:
        from sglang.srt.managers.io_struct import GenerateReqInput

        # Neither the server's figures of requests nor its log have it.
        hidden = {"log_metrics": False, "no_logs": True}
        request = GenerateReqInput(rid=f"{AUDITED}{uuid4().hex}", routed_dp_rank=replica, **hidden, **body)
        (answer,) = [answer async for answer in self._manager().generate_request(request)]
        return answer  # type: ignore[no-any-return]


def _compared(ours: Sequence[int], known: Sequence[ties.Answer]) -> tuple[ties.Parting | None, float]:
    """Return where *ours* part from the nearest answer, and the noise of all."""
    return ties.nearest(ours, known)[0], _noise(known)


def _noise(known: Sequence[ties.Answer]) -> float:
    """Return the most by which the first answer differs from the others, in nats."""
    return max(ties.noise(known[0], one) for one in known[1:])
