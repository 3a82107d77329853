"""What docs/performance.md says beside its generated tables is what its raw data says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = " ".join((ROOT / "docs" / "performance.md").read_text().split())


def results(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def test_results_are_listed() -> None:
    listed = (RESULTS / "h200" / "README.md").read_text()
    kept = [path.name for path in (RESULTS / "h200").iterdir() if path.name != "README.md"]
    assert [name for name in kept if f"`{name}" not in listed] == []


def test_costs() -> None:
    policies = results("policy/overhead.json")["policies"]
    ours, theirs, sync = policies["throughput"], policies["SGLang EMA"], policies["throughput hand-over"]
    assert f"median {ours['median_us']:.1f} us, p99 {ours['p99_us']:.0f} us" in PAGE
    assert f"(SGLang's EMA: {theirs['median_us']:.1f} us, {theirs['p99_us']:.1f} us)" in PAGE
    assert f"median {sync['median_us']:.0f} us, p99 {sync['p99_us']:.0f} us" in PAGE
    size = results("policy/memory.json")["bytes_by_rounds"]["200000"]
    assert f"200,000 rounds | {size / 1000:.0f} kB |" in PAGE
    look = re.search(r"open page \| ([\d.]+ to [\d.]+ ms) of", PAGE)
    assert look and look[1] in (RESULTS / "page" / "README.md").read_text()
