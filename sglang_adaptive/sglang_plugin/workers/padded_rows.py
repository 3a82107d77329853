"""The rows of a CUDA graph beyond the batch's requests, in the draft extend of multi-layer EAGLE.

SGLang 0.5.23 gathers one row of hidden states a request, at ``request * width + accepted drafts``, in every row of the
graph. In a row without a request the accepted drafts are those of the last request that had the row, and 1 before there
was one. That row exists where a request has two tokens or more, as in every graph of SGLang's own. In the graphs of a
zero-step round, one token a request, it is beyond the hidden states for the last row of the graph.
"""

from __future__ import annotations

from typing import Any


def begin_within(graphs: Any) -> None:
    """Let each row of *graphs*, the graphs of an extend of any width, begin with no accepted drafts.

    A request leaves at most width - 1, which every row has room for. None stands for no graphs.
    """
    if graphs is not None:
        graphs.buffers.num_correct_drafts.zero_()
