"""Sends two servers the same requests and reports where the adaptive one's answers differ."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from sglang_adaptive import ties
from sglang_adaptive.client import Client, RequestError
from tests.campaign import gpu
from tests.campaign.kinds import KINDS
from tests.campaign.record import Unit

LOGPROB_TOLERANCE = 1e-3
"""The pair runs in float32, and another batch size adds in another order."""
TIE = ties.FLOOR
"""Nats between two tokens that rounding may decide between on the CPU engine; a gap of 6e-6 was seen within an hour."""
TIE_IN_BFLOAT16 = 0.5
"""The same on a GPU: the largest gap of SmolLM2 on an H200 from batch size alone."""
AT_ONCE = 8
END = 257
"""The tiny target's token of the end."""
CROWD_TOKENS = 500
"""New tokens of each request of a crowd: all of them need 4,000 slots, and small pools have 3,000."""
COMPARED = (
    *("output_ids", "text", "finish_reason", "completion_tokens", "prompt_tokens"),
    *("input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs"),
)
SLOW_SECONDS = 0.02
"""Seconds that a slow reader pauses after each part."""


@dataclass(frozen=True)
class Question:
    """A request of some kind, and how its answer is read."""

    kind: str
    body: dict[str, Any]
    streamed: bool
    slow: bool


def questions(draw: random.Random, each: int, seeded: bool = False) -> list[Question]:
    """Return *each* requests of every kind in random order; half of them stream, and some of those read slowly.

    *seeded* adds the kinds that have a seed.
    """
    found = []
    for name, kind in KINDS.items():
        for _ in range(each if seeded or not kind.seeded else 0):
            body = kind.draw(draw)
            one = not isinstance(body.get("text"), list) and "n" not in body["sampling_params"]
            streamed = one and draw.random() < 0.5
            found.append(Question(name, body, streamed, streamed and draw.random() < 0.2))
    draw.shuffle(found)
    return found


def crowd(draw: random.Random) -> list[Question]:
    """Return AT_ONCE requests whose answers do not fit together into a small pool, so that some are retracted.

    SGLang keeps slots for all new tokens of a request that ignores its end, and then retracts none.
    """
    endless = {"logit_bias": {str(END): -100}}
    long = replace(KINDS["plain"], sampling=endless, ignore_eos=False, new_tokens=lambda draw: CROWD_TOKENS)
    return [Question("plain", long.draw(draw), streamed=False, slow=False) for _ in range(AT_ONCE)]


def ask(client: Client, question: Question) -> Any:
    """Return the answer, a list of answers, or the text of the refusal."""
    try:
        if not question.streamed:
            return client.post("/generate", question.body)
        part: Any = {}
        before: list[int] = []
        for part in client._events("/generate", question.body):
            if "error" in part:
                return _refusal(json.dumps(part["error"]))
            if part["output_ids"][: len(before)] != before:
                return "a streamed answer took tokens back"
            before = part["output_ids"]
            time.sleep(SLOW_SECONDS * question.slow)
        return part
    except RequestError as error:
        return _refusal(error.answer)


def _refusal(words: str) -> str:
    """Return what a refusal says, without the parts that may differ: the transport's text and the request's id."""
    found = re.search(r'"message": ?"((?:[^"\\]|\\.)*)"', words)
    return "refused: " + _timeless(found.group(1) if found else words)[:160]


def compare(unit: Unit, plain: Client, adapting: Client, asked: Sequence[Question]) -> None:
    """Ask both servers; differences are losses, except ties and those of token counts in mixed prefills."""
    mixes = adapting.server_info()["enable_mixed_chunk"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda question: ask(adapting, question), asked))
        wanted = list(pool.map(lambda question: ask(plain, question), asked))
    for question, ours, theirs in zip(asked, found, wanted, strict=True):
        what = f"{question.kind}{', streamed' if question.streamed else ''}"
        said = difference(ours, _cut(theirs, ours, KINDS[question.kind].shorter))
        if said and mixes and KINDS[question.kind].counts_tokens:
            unit.tried[what] += 1
            unit.known[f"{question.kind}, with mixed prefills"] += 1
        elif said and is_tie(plain, question.body, ours, TIE_IN_BFLOAT16 if gpu.used else TIE):
            unit.tried[what] += 1
            unit.known["a tie"] += 1
        else:
            unit.check(not said, what, f"{said}; asked {json.dumps(question.body)[:700]}")


def is_tie(reference: Client, body: Mapping[str, Any], ours: Any, nats: float) -> bool:
    """Return whether a second answer of *reference* to *body* equals *ours*, or diverges by a tie of *nats*.

    *ours* may be a list of answers.
    """
    try:
        again = reference.post("/generate", ties.as_reference(body))
    except RequestError:
        return False
    if not isinstance(ours, list):
        ours, again = [ours], [again]
    if len(ours) != len(again) or not all(isinstance(one, dict) for one in ours):
        return False
    parted = (ties.parting(one["output_ids"], other) for one, other in zip(ours, again, strict=True))
    return all(one is None or one.gap <= nats for one in parted)


def difference(ours: Any, theirs: Any) -> str:
    """Describe how two answers differ; empty if they do not."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return "" if ours == theirs else f"got {_short(ours)}, without speculation {_short(theirs)}"
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return f"{len(ours)} answers, without speculation {len(theirs)}"
        return next((said for pair in zip(ours, theirs, strict=True) if (said := difference(*pair))), "")
    ours, theirs = ({**one["meta_info"], **one} for one in (ours, theirs))
    for name in COMPARED:
        if not _near(ours.get(name), theirs.get(name)):
            return f"{name}: got {_short(ours.get(name))}, without speculation {_short(theirs.get(name))}"
    return ""


def _cut(theirs: Any, ours: Any, most: int) -> Any:
    """Return *theirs* cut to the length of *ours* if that is at most *most* tokens shorter and the rest agrees."""
    if not most or isinstance(theirs, str) or isinstance(ours, str):
        return theirs
    ids, given = theirs["output_ids"], ours["output_ids"]
    fits = len(ids) - most <= len(given) <= len(ids) and ids[: len(given)] == given
    return ours if fits and ours["meta_info"]["finish_reason"]["type"] == "length" else theirs


def _timeless(value: Any) -> str:
    """Return *value* as text, without the time that a grammar's compiler writes into its messages."""
    return re.sub(r"\[\d\d:\d\d:\d\d\]", "", json.dumps(value))


def _near(ours: Any, theirs: Any) -> bool:
    """Return whether numbers match within tolerance and everything else is equal, but for times in messages."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, abs_tol=TIE_IN_BFLOAT16 if gpu.used else LOGPROB_TOLERANCE)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_near, ours, theirs))
    return _timeless(ours) == _timeless(theirs)


def _short(value: Any) -> str:
    said = json.dumps(value)
    return said if len(said) <= 300 else f"{said[:300]}..."
