"""Measure NGRAM's trees on copied text, with prompts in the corpus and without. See benchmarks/README.md.

    python -m benchmarks.ngram_prompts [--json F]

Runs the recorded edits of whole files (`traces/edits.py`), one request after the other, through SGLang's own corpus.
The corpus is filled and its trees are cut as in the adaptive worker. A draft is right if it matches the text that
follows, so tokens per round are exact.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.results import Report, command_parser
from benchmarks.traces import texts
from sglang_adaptive.sglang_plugin.workers.ngram_inputs import Prompts, cut

EDITS = Path(__file__).parent / "traces" / "edits_set" / "edits.npz"
DRAFTS = (3, 7, 11, 15)
"""Drafts of a tree in configs/ngram.json; the corpus has trees with the most."""
DEPTH = 18
"""SGLang's --speculative-ngram-max-trie-depth."""
ACCEPTANCE = "exact: drafts against the recorded text"


class Reader:
    """A corpus that reads requests as NGRAM's worker does."""

    def __init__(self, drafts: int, prompts: bool) -> None:
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

        self._width, self._widest = drafts + 1, max(DRAFTS) + 1
        self._corpus = NgramCorpus(DEPTH, draft_token_num=self._widest)
        self._prompts = Prompts(DEPTH) if prompts else None

    def rounds(self, text: Sequence[int], prompt: int) -> Iterator[int]:
        """Yield the tokens of each round that generates *text* after its first *prompt* tokens and prefill's token."""
        place = prompt + 1
        if self._prompts is not None:
            self._prompts.join([_Request(text[:prompt])])
        self._read()
        while place < len(text):
            self._corpus.synchronize()
            last = [text[max(0, place - DEPTH) : place]]
            tree = cut(*self._corpus.batch_get(["it"], last, [place]), self._widest, self._width)
            tokens = min(_right(*tree, text[place:]) + 1, len(text) - place)
            place += tokens
            self._corpus.batch_put([text[max(0, place - DEPTH) : place]])
            self._read()
            yield tokens
        self._corpus.erase_match_state(["it"])

    def _read(self) -> None:
        if self._prompts is not None:
            self._prompts.read(self._corpus)


@dataclass
class _Request:
    """The prefill's data about a request."""

    origin_input_ids_unpadded: Sequence[int]
    rid: str = "it"
    output_ids: Sequence[int] = ()


def _right(tokens: Any, mask: Any, following: Sequence[int]) -> int:
    """Return how many of the *following* tokens are on a path of the tree."""
    seen = mask.reshape(len(tokens), len(tokens)).astype(bool)
    best = 0
    for ancestors in seen:
        path = tokens[np.flatnonzero(ancestors)][1:].tolist()  # the root is the last known token
        if path == list(following[: len(path)]):
            best = max(best, len(path))
    return best


def main(argv: Sequence[str]) -> int:
    """Print and write tokens per round by drafts of a tree."""
    found = command_parser("ngram_prompts", __doc__)
    found.add_argument("--json", type=Path)
    given = found.parse_args(argv)
    edits = texts.load(EDITS)
    requests = [edits.of(at) for at in range(len(edits.prompt))]
    rows = []
    for drafts in DRAFTS:
        row: dict[str, Any] = {"drafts": drafts}
        for name, prompts in (("without", False), ("with", True)):
            reader = Reader(drafts, prompts)
            tokens = [
                taken for prompt, output, _ in requests for taken in reader.rounds([*prompt, *output], len(prompt))
            ]
            row[name] = float(np.mean(tokens))
        rows.append(row)
        print(f"{drafts:2d} drafts: {row['without']:.2f} tokens per round, with prompts {row['with']:.2f}")
    micros = 1e6 * _seconds_a_token([prompt for prompt, _, _ in requests])
    print(f"the corpus takes {micros:.0f} us per prompt token")
    if given.json:
        report = Report(given.json, "ngram_prompts", argv, acceptance=ACCEPTANCE)
        report.add(requests=len(requests), tokens_a_round=rows, microseconds_a_prompt_token=micros)
    return 0


def _seconds_a_token(prompts: Sequence[Sequence[int]]) -> float:
    from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

    corpus, begin = NgramCorpus(draft_token_num=max(DRAFTS) + 1), time.perf_counter()
    for prompt in prompts:
        corpus.batch_put([list(prompt)])
        corpus.synchronize()
    return (time.perf_counter() - begin) / sum(map(len, prompts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
