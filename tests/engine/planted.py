"""A plugin for SGLang that injects a fault into a server; a file selects the fault, or none, at run time.

Each fault acts in or before rounds that draft: zero steps stay correct.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

ORDER = "PLANTED_FAULT"
"""The variable that names the file, which holds the name of a fault, or nothing."""

ACCEPTED = "one draft more is accepted than was right"
PENALTY = "penalties count one token a round"
TARGET = "a catch-up after zero steps spoils the target's keys and values"
LOGPROB = "log-probabilities are those of the row before"

ROUNDS = 10
"""One round in this many has one draft too many."""
MEASURED = 64
"""Tokens on which the audit in a server measures noise; each costs two rounds of CPU time."""


def register() -> None:
    """Install every fault, to act when the file names it."""
    from sglang.srt.speculative import eagle_utils, eagle_worker_common

    from sglang_adaptive.sglang_plugin.admin import audit_http
    from sglang_adaptive.sglang_plugin.stages.exact import penalties
    from sglang_adaptive.sglang_plugin.stages.zero_steps import deferred_draft_extend

    audit_http.MEASURED = MEASURED
    _around(eagle_utils, "verify_tree_greedy_func", _accept_more)
    _around(penalties.Sums, "count", _count_one)
    _around(deferred_draft_extend, "run_catch_up", _spoil_keys)
    _around(eagle_worker_common, "compute_spec_logprobs", _shift_logprobs)


def _around(module: Any, name: str, fault: Callable[..., Any]) -> None:
    sound = getattr(module, name)

    @wraps(sound)  # the package looks at SGLang's signatures
    def spoilt(*args: Any, **how: Any) -> Any:
        return fault(sound, *args, **how)

    setattr(module, name, spoilt)


def _planted(name: str) -> bool:
    file = Path(os.environ[ORDER])
    return file.exists() and file.read_text() == name


_rounds = [0]


def _accept_more(sound: Callable[..., Any], **how: Any) -> Any:
    predict, index, accepted = sound(**how)
    candidates, nodes = how["candidates"], how["retrieve_index"]
    _rounds[0] += candidates.shape[1] > 1
    if _planted(ACCEPTED) and candidates.shape[1] > 1 and not _rounds[0] % ROUNDS:
        for row, right in enumerate(accepted.tolist()):
            if right + 1 < candidates.shape[1]:
                before, more = nodes[row, right], nodes[row, right + 1]
                predict[before], predict[more] = candidates[row, right + 1], how["target_predict"][row, right + 1]
                index[row, right + 1] = more
                accepted[row] += 1
    return predict, index, accepted


def _count_one(sound: Callable[..., Any], sums: Any, batch: Any, verify_input: Any, index: Any) -> None:
    if _planted(PENALTY):
        last = (index >= 0).sum(1, keepdim=True) - 1
        index = index.where(torch.arange(index.shape[1]) == last, -1)
    sound(sums, batch, verify_input, index)


def _spoil_keys(sound: Callable[..., Any], draft: Any, state: Any, batch: Any, *args: Any, **how: Any) -> Any:
    found = sound(draft, state, batch, *args, **how)
    ahead = args[2]
    if _planted(TARGET) and not ahead:  # before a round that drafts
        last = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens - 1].long()
        pool = draft.target_worker.model_runner.token_to_kv_pool
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer[last] = 0
    return found


def _shift_logprobs(sound: Callable[..., Any], batch: Any, logits_output: Any, *args: Any, **how: Any) -> None:
    sound(batch, logits_output, *args, **how)
    if _planted(LOGPROB) and logits_output.next_token_logprobs.shape[1] > 1:
        logits_output.next_token_logprobs = logits_output.next_token_logprobs.roll(1, dims=1)
