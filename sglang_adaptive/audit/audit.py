"""An audit from its first question to its report."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from itertools import islice
from typing import Any

from sglang_adaptive import ties
from sglang_adaptive.audit import sampled
from sglang_adaptive.audit.questions import LOGPROBS, PLAIN, Question
from sglang_adaptive.client import AdaptiveServer, Client, NotReady, RequestError, in_parallel, in_words, read_info

PATIENCE = 60.0
"""Seconds that a request may still take after the end of the time."""
SWITCH_SECONDS = 0.05
"""Seconds between two depths while they switch; a round takes 2 to 30 ms."""
RENEW_SECONDS = 1.0
ALONE = 2
"""Questions of a block that are also asked one at a time."""
ASKED_AGAIN = 16
"""Questions with a wrong text whose reference is asked again."""
SAMPLES = 300
"""Samples for each way of sampling, at each depth."""
KEPT_BACK = 0.1
"""Share of the time reserved for asking again."""
ZERO, SWITCHING, POLICY, AS_IT_IS = "0 steps", "switching", "by its policy", "as it is"


def _answer(client: Client, body: Mapping[str, Any]) -> Any:
    try:
        return client.post("/generate", body)
    except RequestError as error:
        if error.asks_for_key:
            raise
        words = error.answer
    with contextlib.suppress(ValueError, KeyError, TypeError):
        words = str(json.loads(words[words.index("{") :])["error"]["message"])  # without the JSON around it
    return f"refused: {words[:200]}"


@dataclass(frozen=True)
class Way:
    """How a question is asked."""

    name: str
    at_once: int

    def __str__(self) -> str:
        return f"{self.name}, {'alone' if self.at_once == 1 else f'{self.at_once} at once'}"


@dataclass
class Compared:
    """One text and that of the reference."""

    number: int
    """Number of texts compared so far, including this one."""
    way: Way
    question: Question
    ids: list[int]
    parting: ties.Parting | None = None
    differ: float = 0.0
    """Largest difference of a requested log-probability, in nats."""
    refused: str = ""
    """Why there is no text although the reference has one."""

    def verdict(self, width: float) -> str:
        """Return EQUAL, TIE or WRONG; *width* is the gap of a tie, in nats."""
        if self.refused or self.differ > width or (self.parting is not None and self.parting.gap > width):
            return ties.WRONG
        return ties.EQUAL if self.parting is None else ties.TIE


class Subject:
    """The audited server: an adaptive one, whose depth can be held, or any other, as it is."""

    def __init__(self, client: Client) -> None:
        """Raises NotReady when the server does not answer."""
        self.client = client
        self.info = read_info(client)
        block = self.info["internal_states"][0].get("adaptive")
        self.server = AdaptiveServer(client) if block is not None and block["active"] else None
        tiers = [] if self.server is None else self.server.state["tiers"]
        self.depths: dict[str, int] = {f"{steps} step{'s' * (steps != 1)}": steps for steps in tiers}
        """By the name of the way that holds it."""

    def ways(self) -> list[str]:
        if self.server is None:
            return [AS_IT_IS]
        own = [POLICY] if self.server.state["forced_steps"] is None else []
        return [*self.depths, *([SWITCHING] if len(self.depths) > 1 else []), *own]

    def run(self, name: str, draw: random.Random) -> tuple[Callable[[], None], float]:
        """Put the server into this way; return a function that keeps it there, and the seconds between its calls."""
        server = self.server
        if server is None or name == POLICY:
            self.put_back()
            return lambda: None, RENEW_SECONDS
        if name == SWITCHING:
            return (lambda: server.hold(draw.choice(list(self.depths.values())))), SWITCH_SECONDS
        server.hold(self.depths[name])
        return server.renew, RENEW_SECONDS

    def put_back(self) -> None:
        if self.server is not None:
            self.server.put_back()


@dataclass
class Found:
    """What an audit has found so far."""

    compared: list[Compared] = field(default_factory=list)
    noise: float = 0.0
    """Largest difference in nats between two runs of the reference, or between what it decodes and reads."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Questions that the reference does not answer, and why."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    passes: int = 0
    """How often every question was asked."""

    @property
    def width(self) -> float:
        return ties.width(self.noise)

    def wrong(self) -> list[Compared]:
        return [one for one in self.compared if one.verdict(self.width) == ties.WRONG]


class Audit:
    """Asks questions in blocks, in every way, until the time is over."""

    def __init__(
        self, subject: Subject, reference: Client | None, questions: Sequence[Question], at_once: int, seed: int,
        progress: Callable[[str, Found], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """*reference* is a server without speculation; None for zero steps of *subject*."""
        self._subject, self._reference, self._at_once = subject, reference, at_once
        self._questions, self._draw, self._progress = list(questions), random.Random(seed), progress
        self._ways = [name for name in subject.ways() if reference is not None or name != ZERO]
        self._known: dict[str, list[ties.Answer]] = {}
        self._until = 0.0
        self.found = Found()

    def run(self, seconds: float, passes: int | None, samples: bool) -> Found:
        """Audit for *seconds*, or until every question was asked *passes* times. Raises NotReady.

        The depth that was held before is held again at the end in all cases.
        """
        end = time.monotonic() + seconds
        self._until = end - KEPT_BACK * seconds
        try:
            self._ask_all(passes, samples)
            self._until = end
            self._ask_again()
        finally:
            self._subject.put_back()
        self._require_all()
        return self.found

    def _ask_all(self, passes: int | None, samples: bool) -> None:
        order = list(self._questions)
        while True:
            for at in range(0, len(order), self._at_once):
                self._block(order[at : at + self._at_once])
                if samples and not at and not self.found.passes:
                    self._sampled()
                if self._late():
                    return
            self.found.passes += 1
            if self.found.passes == passes or not self.found.compared:
                return
            self._draw.shuffle(order)

    def _late(self) -> bool:
        return time.monotonic() >= self._until

    # -- greedy ---------------------------------------------------------------------------------------------------

    def _block(self, block: Sequence[Question]) -> None:
        self._expect([question for question in block if question.name not in self._known])
        known = [question for question in block if self._known.get(question.name)]
        for name in self._ways:
            for at_once, asked in ((self._at_once, known), (1, self._draw.sample(known, min(ALONE, len(known))))):
                way = Way(name, at_once)
                answers = self._ask(self._subject.client, name, [question.body for question in asked], at_once)
                for question, answer in zip(asked, answers, strict=True):
                    self._compare(way, question, answer)

    def _expect(self, block: Sequence[Question]) -> None:
        """Ask the reference, one question at a time and several at once."""
        bodies = [ties.as_reference(question.body) for question in block]
        alone = self._ask_reference(bodies, 1)
        together = self._ask_reference(bodies, self._at_once)
        for question, *answers in zip(block, alone, together, strict=True):
            if None in answers:
                continue
            bad = next((answer for answer in answers if not ties.is_whole(answer)), None)
            if bad is not None:
                why = bad if isinstance(bad, str) else str(bad["meta_info"]["finish_reason"])
                self.found.left_out[question.name] = why
                self._known[question.name] = []
                continue
            self._known[question.name] = answers
            self.found.noise = max(self.found.noise, ties.noise(*answers))
            if self._reference is None:
                self._compare(Way(ZERO, self._at_once), question, answers[1], answers[:1])
        plain = [self._known.get(question.name) for question in block if question.kind == PLAIN]
        self._read([known[0] for known in plain if known])

    def _read(self, decoded: Sequence[ties.Answer]) -> None:
        """Let the reference read what it *decoded*, if it returned the tokens of the prompt."""
        told = [answer for answer in decoded if answer.get("prompt_token_ids")]
        bodies = [ties.as_prompt(answer["prompt_token_ids"], answer["output_ids"]) for answer in told]
        for answer, found in zip(told, self._ask_reference(bodies, 1), strict=True):
            if ties.is_whole(found):
                self.found.noise = max(self.found.noise, ties.noise_of_reading(answer, found))

    def _compare(self, way: Way, question: Question, answer: Any, known: Sequence[ties.Answer] = ()) -> None:
        if answer is None or (isinstance(answer, dict) and not ties.is_whole(answer)):
            return
        one = Compared(len(self.found.compared) + 1, way, question, [])
        self.found.compared.append(one)
        if not isinstance(answer, dict):
            one.refused = answer
            return
        one.parting, nearest = ties.nearest(answer["output_ids"], known or self._known[question.name])
        one.ids = list(answer["output_ids"]) if one.parting is not None else []
        if question.kind == LOGPROBS:
            one.differ = ties.chosen_differ(answer, nearest)
        self._progress(str(way), self.found)

    def _ask_again(self) -> None:
        """Ask the reference again, in two batch sizes, if a text is wrong: it may choose that token itself.

        A mixture of experts may send a token to other experts in another batch, and then no width is enough.
        """
        wrong = [one for one in self.found.wrong() if one.parting is not None]
        bodies = {one.question.name: ties.as_reference(one.question.body) for one in wrong}
        for name, body in islice(bodies.items(), ASKED_AGAIN):
            answers = [*self._ask_reference([body], 1), *self._ask_reference([body] * self._at_once, self._at_once)]
            whole = [*self._known[name], *filter(ties.is_whole, answers)]
            for one in wrong:
                if one.question.name == name:
                    one.parting = ties.nearest(one.ids, whole)[0]

    def _ask_reference(self, bodies: Sequence[Any], at_once: int) -> list[Any]:
        return self._ask(self._reference or self._subject.client, ZERO, bodies, at_once)

    def _ask(self, client: Client, name: str, bodies: Sequence[Any], at_once: int) -> list[Any]:
        """Return the answers to *bodies*, as `in_parallel` does; a refused request's answer is the refusal's text.

        Raises NotReady when the server does not answer or requires a key.
        """
        if not bodies or self._late():
            return [None] * len(bodies)
        keep, every = (lambda: None), RENEW_SECONDS
        if client is self._subject.client:
            keep, every = self._subject.run(name, self._draw)

        def meanwhile() -> None:
            keep()
            self._progress(str(Way(name, at_once)), self.found)
            if time.monotonic() > self._until + PATIENCE:
                raise NotReady(f"{client.url}: a request was not answered in {PATIENCE:.0f} s")

        try:
            return in_parallel(partial(_answer, client), bodies, at_once, meanwhile, every, self._until)
        except (RequestError, OSError, HTTPException) as error:
            raise NotReady(f"{client.url}: {in_words(error)}") from None

    def _require_all(self) -> None:
        """Raise NotReady if the time was too short for one text in each way."""
        asked = {one.way.name for one in self.found.compared}
        missing = [name for name in self._ways if name not in asked]
        if missing and not self.found.left_out:
            raise NotReady(f"the time ran out before anything was asked: {', '.join(missing)}; give more --minutes")
        if missing:
            name, why = next(iter(self.found.left_out.items()))
            raise NotReady(f"nothing could be compared; {name}: {why}")

    # -- sampled --------------------------------------------------------------------------------------------------

    def _sampled(self) -> None:
        """Compare how often each token occurs after the first prompt."""
        body = self._questions[0].body
        prompt = body.get("text", body.get("input_ids"))
        for how in sampled.KINDS:
            requests = [sampled.request(prompt, how)] * (SAMPLES // sampled.TOGETHER)
            wanted = self._ask_reference(requests, 1)
            for name in self._ways:
                drawn = self._ask(self._subject.client, name, requests, 1)
                if not all(isinstance(one, list) for one in (*wanted, *drawn)):
                    continue  # the time is over, or the server refuses
                tests = list(sampled.compared(sampled.texts(drawn), sampled.texts(wanted)))
                what, at, least = min(tests, key=lambda test: test[2])
                wrong = least < sampled.ALPHA
                self.found.samples.append(
                    {"way": name, "sampling": dict(how), "comparisons": len(tests), "least_probability": least,
                     "where": f"{what} {at}", "wrong": wrong}
                )  # fmt: skip
