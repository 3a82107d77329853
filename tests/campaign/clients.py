"""Clients that disconnect, abort at every stage and hold sessions; and samples, which are compared by distribution."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from sglang_adaptive.audit import sampled as audit
from sglang_adaptive.client import Client
from tests.campaign import gpu
from tests.campaign.kinds import TEXTS, long_text, text
from tests.campaign.record import Unit

ENDLESS = 1500
"""More tokens than any client waits for."""
AT_ONCE = 6
TOO_EARLY = "an abort that came before its request"
"""SGLang 0.5.23 sends one abort per request.

If the request still waits for its tokenizer or for the end of a pause, the scheduler does not know it yet, and the
request runs to its end.
"""
TOO_LATE = "an abort that came after the end"
"""Some requests ended first because the machine was slow."""


def go_away(client: Client, draw: random.Random) -> str:
    """Read a few parts of a stream and close the connection."""
    parts = client.stream(long_text(draw), ENDLESS, ignore_eos=True)
    list(islice(parts, draw.randrange(6)))
    parts.close()  # type: ignore[attr-defined]
    return ""


def abort(client: Client, draw: random.Random) -> str:
    """Abort at any stage: in transit, waiting, between two prefill chunks, or decoding."""
    rid = f"abort-{draw.getrandbits(60)}"
    prompt = long_text(draw) if draw.random() < 0.5 else text(draw)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.generate, prompt, ENDLESS, rid=rid, ignore_eos=True)
        time.sleep(draw.choice((0.0, 0.01, 0.05, 0.2, 0.5)))
        while not answer.done():
            client.abort(rid)
            time.sleep(0.01)
        reason = answer.result()["meta_info"]["finish_reason"]
    if reason["type"] == "length":
        return TOO_EARLY
    return "" if reason["type"] == "abort" else f"finished with {reason}"


def abort_all(client: Client, draw: random.Random) -> str:
    """Abort everything while streams run; some may not have started."""
    streams = [client.stream(text(draw), ENDLESS, ignore_eos=True) for _ in range(3)]
    with ThreadPoolExecutor(len(streams)) as pool:
        read = [pool.submit(list, stream) for stream in streams]
        time.sleep(draw.uniform(0, 0.3))
        while not all(one.done() for one in read):
            client.post("/abort_request", {"abort_all": True})
            time.sleep(0.02)
    ends = [one.result()[-1]["meta_info"]["finish_reason"]["type"] for one in read]
    if "abort" in ends and set(ends) == {"abort", "length"}:
        return TOO_LATE
    return "" if ends == ["abort"] * 3 else f"finished with {ends}"


CLIENTS: dict[str, Callable[[Client, random.Random], str]] = {
    "a client that goes away": go_away,
    "an abort at some stage": abort,
}


def come_and_go(unit: Unit, client: Client, draw: random.Random, count: int) -> None:
    """Send *count* clients that leave early, several at once; then abort everything."""
    seeds = [(draw.choice(list(CLIENTS)), random.Random(draw.getrandbits(60))) for _ in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (name, _), said in zip(seeds, pool.map(lambda one: CLIENTS[one[0]](client, one[1]), seeds), strict=True):
            _note(unit, name, said)
    _note(unit, "an abort of everything", abort_all(client, draw))


def _note(unit: Unit, name: str, said: str) -> None:
    if said in (TOO_EARLY, TOO_LATE):
        unit.tried[name] += 1
        unit.known[said] += 1
    else:
        unit.check(not said, name, said)


def sessions(unit: Unit, plain: Client, adapting: Client, draw: random.Random) -> None:
    """Run three turns of a session on both servers, the second from the middle of the first."""
    turns = [(text(draw), draw.randint(4, 40), offset) for offset in (None, draw.randint(3, 9), None)]
    answers = [_session(client, turns) for client in (adapting, plain)]
    if gpu.used:  # after a tie the later turns have different prefixes
        answers = [[length for _, length in answer] for answer in answers]
    unit.check(answers[0] == answers[1], "a session of three turns", f"{answers[0]}, without speculation {answers[1]}")


def _session(client: Client, turns: list[tuple[str, int, int | None]]) -> list[Any]:
    session, rid = client.post("/open_session", {"capacity_of_str_len": 4000}), None
    ids: list[Any] = []
    for prompt, tokens, offset in turns:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        turn = {"id": session, "rid": rid, "offset": offset}
        answer = client.post("/generate", {"text": prompt, "session_params": turn, "sampling_params": sampling})
        rid = answer["meta_info"]["id"]
        ids.append((answer["output_ids"], answer["meta_info"]["prompt_tokens"]))
    client.post("/close_session", {"session_id": session})
    return ids


SAMPLES = 600


def sampled(unit: Unit, plain: Client, adapting: Client, draw: random.Random, samples: int = SAMPLES) -> None:
    """Compare how often each token and each pair of tokens follows a prompt, excluding the prefill's token."""
    how, prompt = draw.choice(audit.KINDS), draw.choice(TEXTS)
    drawn = [samples_of(client, prompt, how, samples) for client in (adapting, plain)]
    for what, at, p in audit.compared(*drawn):
        unit.check(p >= audit.ALPHA, f"sampled: {what}", f"{how}, position {at}, p = {p:.1e}")


def samples_of(client: Client, prompt: str, how: Mapping[str, Any], samples: int) -> list[list[int]]:
    """Return the output tokens of *samples* samples."""
    body = audit.request(prompt, how)
    return audit.texts(client.post("/generate", body) for _ in range(samples // audit.TOGETHER))
