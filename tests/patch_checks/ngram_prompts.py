"""0022: NGRAM's corpus includes the prompts of requests."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from tests.patch_checks.registry import repaired

DEPTH, WIDTH = 18, 4


class _Request(SimpleNamespace):
    __hash__ = object.__hash__


def _worker() -> Any:
    from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    worker = object.__new__(NGRAMWorker)
    worker.ngram_corpus = NgramCorpus(DEPTH, draft_token_num=WIDTH)
    worker.max_trie_depth, worker.draft_token_num, worker.enable_overlap = DEPTH, WIDTH, False
    worker._prompt_tokens_put = WeakKeyDictionary()
    return worker


@repaired
def text_is_drafted_from_all_of_a_prompt() -> None:
    worker, tokens = _worker(), range(1, 601)
    prompt = array("q", tokens)
    request = _Request(rid="a", origin_input_ids=prompt, origin_input_ids_unpadded=prompt, output_ids=array("q", [900]))
    batch = SimpleNamespace(reqs=[request], grammar_needs_sync=lambda: True)
    for _ in range(3):
        worker._update_ngram_corpus(batch)
    worker.ngram_corpus.synchronize()
    for known in (DEPTH, 100, 250, 256, 260, 500):
        behind = list(tokens[known - DEPTH : known])
        drafts, _ = worker.ngram_corpus.batch_get(["a"], [behind], [known])
        worker.ngram_corpus.erase_match_state(["a"])
        assert drafts.tolist()[1:] == list(tokens[known : known + WIDTH - 1]), f"behind token {known}"
