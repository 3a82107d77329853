"""The table of docs/compatibility.md that comes from benchmarks/results/architectures; empty without such results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from generated import DOCS, update

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.architectures.families import FAMILIES  # noqa: E402
from benchmarks.architectures.verdicts import DIFFERENT, EQUAL, FAILED, REFUSED, TIE, of_family  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "architectures"
Record = Mapping[str, Any]


def read(folder: Path = RESULTS) -> list[Record]:
    """Return the records of *folder* in the order of the families; those of unknown families are left out."""
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return [found[family.name] for family in FAMILIES if family.name in found]


def lines(records: Sequence[Record]) -> Iterator[str]:
    """Yield the table, or one line where nothing is measured."""
    if not records:
        yield "Not measured yet."
        return
    gpus = sorted({f"{record['gpu']}, {record['date']}" for record in records})
    yield f"`python -m benchmarks.architectures`, {'; '.join(gpus)}."
    yield ""
    yield (
        "| Architecture | Models | Draft | Attention | Verdict | Depths | equal, ties, different texts | "
        "unlikely tokens, worst run, the reference | Drafts accepted | Seconds to start | Late kernels |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for record in records:
        yield f"| {' | '.join(cells(record))} |"


def cells(record: Record) -> list[str]:
    """Return one row."""
    runs = record.get("runs", [])
    verdict = of_family(record)
    why = {FAILED: record.get("error"), REFUSED: record.get("reason")}.get(verdict)
    texts = ", ".join(str(sum(run[kind] for run in runs)) for kind in (EQUAL, TIE, DIFFERENT))
    startup = record.get("startup") or {}
    late = startup.get("late_kernel_loads")
    return [
        record["family"],
        record["models"],
        f"{record['algorithm']}, {record['draft']}",
        str(record.get("attention_backend") or "?"),
        f"{verdict}: {_cell(why)}" if why else verdict,
        ", ".join(map(str, record.get("depths", []))),
        texts if runs else "",
        _unlikely(record) if runs else "",
        str(sum(run["accepted"] for run in runs)) if runs else "",
        str(record.get("start_seconds") or ""),
        "" if late is None else str(len(late)),
    ]


def _unlikely(record: Record) -> str:
    return f"{max(run['unlikely_tokens'] for run in record['runs']):.1%}, {record['reference']['unlikely_tokens']:.1%}"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:200]


if __name__ == "__main__":
    sys.exit(update(DOCS / "compatibility.md", {"architectures": lines(read())}))
