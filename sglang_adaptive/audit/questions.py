"""An audit's questions: built-in prompts or the operator's own, each in every kind of greedy request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).with_name("prompts.json")
SCHEMA = {
    "type": "array",
    "minItems": 4,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 16}, "count": {"type": "integer"}},
        "required": ["name", "count"],
    },
}
PLAIN, LOGPROBS = "plain", "log-probabilities"
PENALTIES: Mapping[str, Mapping[str, Any]] = {
    "frequency penalty": {"frequency_penalty": 1.5},
    "repetition penalty": {"repetition_penalty": 1.3},
}
"""Kinds that a server with overlap and without speculation does not count exactly: its penalties lag by one token."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    LOGPROBS: {},
    **PENALTIES,
    "least length": {"min_new_tokens": 16, "ignore_eos": False},
    "JSON schema": {"json_schema": json.dumps(SCHEMA), "ignore_eos": False},
}
"""Sampling parameters of each."""
Prompt = str | list[int]


@dataclass(frozen=True)
class Question:
    """One greedy request."""

    prompt: str
    """The name of its prompt."""
    kind: str
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kind}, prompt {self.prompt}"


def questions(prompts: Mapping[str, Prompt], tokens: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Question]:
    """Return every prompt in every kind, ordered so that any few have many of both; answers have *tokens*."""
    return [
        _question(name, prompt, kinds[(turn + place) % len(kinds)], tokens)
        for turn in range(len(kinds))
        for place, (name, prompt) in enumerate(prompts.items())
    ]


def _question(name: str, prompt: Prompt, kind: str, tokens: int) -> Question:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **KINDS[kind]}
    if "min_new_tokens" in sampling:
        sampling["min_new_tokens"] = min(sampling["min_new_tokens"], tokens)
    body = {"text" if isinstance(prompt, str) else "input_ids": prompt, "sampling_params": sampling}
    return Question(name, kind, {**body, "return_logprob": True} if kind == LOGPROBS else body)


def shipped(longest: int) -> dict[str, Prompt]:
    """Return the built-in prompts by name, and two long ones of at most *longest* characters."""
    found: dict[str, Prompt] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    for turn in (1, 2):
        found[f"long {turn}"] = _ledger(turn, longest)
    return found


def _ledger(turn: int, longest: int) -> str:
    """Return lines that are similar but not equal, so that a reader has to look far back."""
    towns, goods = ("Aldgate", "Bruges", "Cadiz", "Danzig", "Elba"), ("wool", "salt", "tin", "wine", "cork", "flax")
    text = f"Ledger {turn} of the harbour. Each line is an arrival; at its end are questions about them.\n"
    for number in range(1, 200):
        where, what = towns[number * turn % len(towns)], goods[number * (turn + 4) % len(goods)]
        line = f"{number}. From {where}: {number * 7 * turn % 90 + 10} barrels of {what}, berth {number * 3 % 8 + 1}.\n"
        if len(text) + len(line) > longest - 60:
            break
        text += line
    return f"{text}Question: what came from Bruges, and how much?\nAnswer:"


def read(path: Path) -> dict[str, Prompt]:
    """Return the prompts of a file by line: text, or JSON with "text" or "input_ids".

    Raises ValueError, with the line, for anything else, and OSError.
    """
    found: dict[str, Prompt] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            found[f"line {number}"] = _read(line, f"{path}:{number}") if line.lstrip().startswith("{") else line
    if not found:
        raise ValueError(f"{path}: no prompts; expected one per line")
    return found


def _read(line: str, where: str) -> Prompt:
    accepted = 'expected {"text": "..."} or {"input_ids": [1, 2, ...]}, or plain text'
    try:
        body = json.loads(line)
    except ValueError:
        raise ValueError(f"{where}: this is not JSON; {accepted}") from None
    given = [body[name] for name in ("text", "input_ids") if name in body]
    if len(given) != 1 or len(body) != 1 or not given[0]:
        raise ValueError(f"{where}: got the keys {', '.join(body) or 'none'}; {accepted}")
    (prompt,) = given
    if not (isinstance(prompt, str) or (isinstance(prompt, list) and all(type(token) is int for token in prompt))):
        raise ValueError(f"{where}: got {json.dumps(prompt)[:40]}; {accepted}")
    return prompt
