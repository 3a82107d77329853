"""Keeps the questions that measure the draft out of its training questions."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.traces.prompts import text_of

RUN = 12
"""Words in a row that a question may not share with a held-out one; a shorter held-out one may not occur whole."""

KEY = 4
"""Words by which runs are looked up."""

Words = tuple[str, ...]


class HeldOut:
    """The words of held-out questions."""

    def __init__(self, texts: Iterable[str]) -> None:
        runs: defaultdict[Words, set[Words]] = defaultdict(set)
        for text in texts:
            words = words_of(text)
            for start in range(max(1, len(words) - RUN + 1)):
                run = words[start : start + RUN]
                if run:
                    runs[run[:KEY]].add(run)
        self._runs = dict(runs)
        self._keys = sorted({len(key) for key in self._runs})

    @classmethod
    def of(cls, file: Path) -> HeldOut:
        """Read every turn of a file of questions, in the format of `benchmarks.traces.prompts.load`."""
        text = text_of(file)
        if ".jsonl" in file.suffixes:
            return cls(turn for line in text.splitlines() for turn in json.loads(line)["turns"])
        return cls(prompt for several in json.loads(text).values() for prompt in several)

    def shares(self, text: str) -> bool:
        """Return whether *text* contains a run of a held-out question."""
        words = words_of(text)
        for key in self._keys:
            for at in range(len(words) - key + 1):
                for run in self._runs.get(words[at : at + key], ()):
                    if words[at : at + len(run)] == run:
                        return True
        return False

    def check(self, texts: Sequence[str]) -> None:
        """Raise ValueError when one of *texts* shares a run."""
        shared = next((index for index, text in enumerate(texts) if self.shares(text)), None)
        if shared is not None:
            raise ValueError(f"question {shared} shares {RUN} words or a whole question with the held-out ones")


def words_of(text: str) -> Words:
    """Return the words in lower case; punctuation and space do not count."""
    return tuple(re.findall(r"\w+", text.lower()))
