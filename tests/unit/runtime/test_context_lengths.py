"""Accepted drafts by the requests' lengths."""

from __future__ import annotations

from sglang_adaptive.runtime.counters import CUT_EVERY as EVERY
from sglang_adaptive.runtime.counters import LENGTH_BINS as BINS
from sglang_adaptive.runtime.counters import ContextLengths


def test_each_request_counts_where_its_length_is() -> None:
    lengths = ContextLengths()
    lengths.add([1, 511, 512, 1023, 1024, 32767, 32768, 1 << 20], [0, 1, 2, 3, 1, 2, 3, 0], [3] * 8)
    for _ in range(EVERY - 1):
        lengths.add([700], [0], [7])  # not counted
    lengths.add([700], [5], [7])
    found = lengths.snapshot()
    assert len(found) == BINS and "to" not in found[-1]
    assert [entry["from"] for entry in found[1:]] == [entry["to"] for entry in found[:-1]]
    counted = {entry["from"]: (entry["requests"], entry["drafted"], entry["accepted"]) for entry in found}
    assert counted[0] == (2, 6, 1)
    assert counted[512] == (3, 13, 10)
    assert counted[1024] == (1, 3, 1)
    assert counted[2048] == counted[4096] == counted[8192] == (0, 0, 0)
    assert counted[16384] == (1, 3, 2)
    assert counted[32768] == (2, 6, 3)
