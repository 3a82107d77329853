"""What a cut of NGRAM's trees accepts: replayed text, no model.

A corpus as SGLang's worker feeds it drafts for text that is known. For each width: the trees of a corpus made for it,
and the widest trees cut to it, in the corpus' order and as the package cuts them. Prints mean accept lengths (accepted
drafts and bonus token a round). Needs a C++ compiler, which SGLang's corpus is built with; no GPU.

    python -m benchmarks.ngram_cut
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sglang_adaptive.cpu_engine.launcher import environment
from sglang_adaptive.sglang_plugin.workers.ngram_trees import Ints, cut

ROOT = Path(__file__).parents[1]
TEXTS = {"code": "sglang_adaptive/policy/*.py", "prose": "docs/*.md"}
FILES, TOKENS_A_FILE = 8, 800
WIDEST, WIDTHS = 12, (2, 4, 8)
TRIE_DEPTH = 18  # SGLang's default, as are the breadths
_WORD = re.compile(r"\w+|[^\w\s]|\s+")

Cut = Callable[[Ints, Ints], tuple[Ints, Ints]]


def documents(pattern: str) -> list[list[int]]:
    """Return the files of *pattern* as word numbers from 1 on."""
    numbers: dict[str, int] = {}
    texts = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))[:FILES]]
    return [[numbers.setdefault(w, len(numbers) + 1) for w in _WORD.findall(t)[:TOKENS_A_FILE]] for t in texts]


def accept_length(texts: list[list[int]], width: int, narrowed: Cut) -> float:
    """Return the mean accept length over *texts* with a new corpus of *width*."""
    from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

    corpus = NgramCorpus(TRIE_DEPTH, 1, 10, width, "BFS", capacity=200_000)
    rounds = tokens = 0
    for number, text in enumerate(texts):
        for accepted in _rounds(corpus, str(number), text, narrowed):
            rounds, tokens = rounds + 1, tokens + accepted + 1
    return tokens / rounds


def _rounds(corpus: object, name: str, text: list[int], narrowed: Cut) -> Iterator[int]:
    """Yield the accepted drafts of each round."""
    at = TRIE_DEPTH
    while at < len(text) - 1:
        corpus.synchronize()  # type: ignore[attr-defined]
        found = corpus.batch_get([name], [text[at - TRIE_DEPTH : at]], [at])  # type: ignore[attr-defined]
        accepted = _accepted(*narrowed(*found), text[at:])
        yield accepted
        at += accepted + 1
        corpus.batch_put([text[max(0, at - TRIE_DEPTH) : at]])  # type: ignore[attr-defined]


def _accepted(tokens: Ints, mask: Ints, follows: list[int]) -> int:
    """Return how deep *follows* goes along the tree."""
    seen = mask.reshape(len(tokens), -1)
    paths = {tuple(tokens[row.nonzero()][1:]) for row in seen}
    return max(depth for depth in range(len(tokens)) if tuple(follows[:depth]) in paths)


def _first(tokens: Ints, mask: Ints, width: int) -> tuple[Ints, Ints]:
    return tokens[:width], mask.reshape(len(tokens), -1)[:width, :width]


def main() -> None:
    ways: dict[str, Callable[[int], tuple[int, Cut]]] = {
        "corpus of the width": lambda width: (width, lambda tokens, mask: (tokens, mask)),
        "widest, the corpus' order": lambda width: (WIDEST, lambda tokens, mask: _first(tokens, mask, width)),
        "widest, as the package cuts": lambda width: (WIDEST, lambda t, m: cut(t, m, WIDEST, width)),
    }
    for name, pattern in TEXTS.items():
        texts = documents(pattern)
        for width in WIDTHS:
            found = {way: accept_length(texts, *ways[way](width)) for way in ways}
            shown = {way: round(length, 3) for way, length in found.items()}
            print(json.dumps({"text": name, "width": width, **shown}), flush=True)


if __name__ == "__main__":
    needed = environment()
    if any(os.environ.get(name) != value for name, value in needed.items() if name != "PYTHONPATH"):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.ngram_cut"], {**os.environ, **needed})
    main()
