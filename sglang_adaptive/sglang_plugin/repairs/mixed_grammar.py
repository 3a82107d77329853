"""Lets a mixed batch see the tokens that its grammars have accepted.

With ``--enable-mixed-chunk`` SGLang 0.5.23 puts running requests into a prefill batch. With overlap that batch is
launched while the results of the round before it are pending, and its grammar mask is built at once. A verify advances
the grammars over pending results first, a mixed batch does not: a running request gets a token that its grammar allowed
a round ago, and SGLang ends it with "Tokens not accepted". It does so at one depth as well.
"""

from __future__ import annotations

from typing import Any


def waits(scheduler: Any, batch: Any) -> bool:
    """Whether pending results have to be processed before *batch*: a mixed one with a grammar."""
    return bool(
        batch
        and scheduler.result_queue
        and batch.forward_mode.is_mixed()
        and not batch.spec_algorithm.is_none()
        and any(req.grammar is not None for req in batch.decoding_reqs or ())
    )
