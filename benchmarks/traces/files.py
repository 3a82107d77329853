"""Writes traces, which `sglang_adaptive.lab.traces` reads, and takes them apart by request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.traces.lookup import Text
from sglang_adaptive.lab.traces import FORMAT_VERSION, OF_LOOKUPS, Trace, check


def requests(trace: Trace) -> Iterator[tuple[str, npt.NDArray[np.uint8], int]]:
    """Yield category, accepted drafts [n] and first row of each request; the arrays are views.

    The request's part of ``match`` and ``looked_up`` is the n rows from its first one on.
    """
    for category, start, length in zip(trace.category, trace.starts.tolist(), trace.length.tolist(), strict=True):
        yield category, trace.accepted[start : start + length], start


def select(trace: Trace, rows: npt.ArrayLike) -> Trace:
    """Return the trace of some requests, by index or mask, in the given order."""
    chosen = np.arange(len(trace.category))[np.asarray(rows)]
    return trace.cut(chosen, trace.length[chosen])


def lookups(ids: Sequence[int], prompt: int, positions: int) -> npt.NDArray[np.uint8]:
    """Return [positions, 2]: ``match`` and ``looked_up`` of the text *ids* [T], whose output starts at *prompt*."""
    text = Text(ids, prompt)
    found = [text.at(prompt + at) for at in range(positions)]
    return np.array([(one.match, one.tokens - 1 if one.match else 0) for one in found], np.uint8).reshape(-1, 2)


def write(path: str | Path, trace: Trace) -> None:
    """Check *trace* and write it to *path*.

    Raises:
        TraceError: the trace violates its own format.
        OSError: the file cannot be written.
    """
    check(str(path), trace)
    with Path(path).open("wb") as file:  # keeps a name without .npz
        np.savez_compressed(
            file,
            about=np.array(json.dumps({"format_version": FORMAT_VERSION, **trace.about})),
            category=np.array(trace.category, np.str_),
            length=trace.length,
            loop_start=trace.loop_start,
            accepted=trace.accepted,
            **{name: array for name in OF_LOOKUPS if (array := getattr(trace, name)) is not None},
        )
