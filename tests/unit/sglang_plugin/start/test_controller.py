"""Which ranks watch the draft's acceptance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.runtime_context import get_context, get_parallel, get_spec

from sglang_adaptive.sglang_plugin.start.controller import watches_acceptance


@pytest.mark.parametrize(
    ("algorithm", "rank", "watches"),
    [("EAGLE3", 0, True), ("EAGLE3", 1, False), ("DFLASH", 0, True), ("NGRAM", 0, False)],
)
def test_the_first_rank_of_a_batch_watches_a_draft(algorithm: str, rank: int, watches: bool) -> None:
    groups = {"attn_dp_size": 1, "tp_group": SimpleNamespace(rank_in_group=rank)}
    with (
        get_context().override_server_args(),
        get_spec().override(speculative_algorithm=algorithm),
        get_parallel().override(**groups),
    ):
        assert watches_acceptance() is watches
