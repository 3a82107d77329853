"""Traces as compressed ``.npz`` files; every array is checked when it is read."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_adaptive.lab.traces.trace import CHAIN, LEVELS, LONGEST_CHAIN, Trace, TraceError
from sglang_adaptive.lookups.lookup import DRAFTS, LONGEST

FORMAT_VERSION = 1
WORDS = ("target", "draft", "prompts", "hardware", "command", "date")
ARRAYS = ("about", "category", "length", "loop_start", "accepted", "confidence")
OF_LOOKUPS = ("match", "looked_up")
"""Arrays that a trace may lack."""


def write(path: str | Path, trace: Trace) -> None:
    """Write *trace* to *path*, checked first.

    Raises:
        TraceError: the trace breaks its own format.
        OSError: the file cannot be written.
    """
    _check(str(path), trace)
    about = {"format_version": FORMAT_VERSION, "temperature": trace.temperature}
    about.update((word, getattr(trace, word)) for word in WORDS)
    with Path(path).open("wb") as file:  # a name without .npz stays as it is
        np.savez_compressed(
            file,
            about=np.array(json.dumps(about)),
            category=np.array(trace.category, np.str_),
            length=trace.length,
            loop_start=trace.loop_start,
            accepted=trace.accepted,
            confidence=trace.confidence,
            **{name: array for name in OF_LOOKUPS if (array := getattr(trace, name)) is not None},
        )


def read(path: str | Path) -> Trace:
    """Return the trace in *path*.

    Raises:
        TraceError: the file cannot be read, or is no trace of this format; one line, with file, key and value.
    """
    file = str(path)
    arrays = _arrays(file)
    about = _about(file, arrays["about"])
    if arrays["category"].dtype.kind != "U":
        raise TraceError(file, "category", str(arrays["category"].dtype), "names, as text")
    trace = Trace(
        **{word: about[word] for word in WORDS},
        temperature=about["temperature"],
        category=tuple(arrays["category"].reshape(-1).tolist()),
        length=arrays["length"],
        loop_start=arrays["loop_start"],
        accepted=arrays["accepted"],
        confidence=arrays["confidence"],
        match=arrays.get("match"),
        looked_up=arrays.get("looked_up"),
    )
    _check(file, trace)
    return trace


def _arrays(file: str) -> dict[str, npt.NDArray[Any]]:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise TraceError(file, None, "a single array", "a trace, a .npz of several arrays")
        with loaded:
            missing = [name for name in ARRAYS if name not in loaded.files]
            if missing:
                raise TraceError(file, missing[0], None, f"a trace with the arrays {', '.join(ARRAYS)}")
            return {name: loaded[name] for name in (*ARRAYS, *OF_LOOKUPS) if name in loaded.files}
    except OSError as error:
        raise TraceError(file, None, error.strerror or "cannot be read", "a readable trace") from error
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TraceError(file, None, "damaged", "a trace, a whole .npz file") from error
    except TraceError:
        raise
    except ValueError as error:  # what numpy says of other files, and of pickled arrays
        raise TraceError(file, None, "no arrays of numbers or text", "a trace, a .npz file") from error


def _about(file: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    try:
        about = json.loads(str(array[()]))
    except (ValueError, RecursionError) as error:
        raise TraceError(file, "about", "no JSON", "a JSON object") from error
    if not isinstance(about, dict):
        raise TraceError(file, "about", about, "a JSON object")
    if about.get("format_version") != FORMAT_VERSION:
        raise TraceError(file, "format_version", about.get("format_version"), str(FORMAT_VERSION))
    for word in WORDS:
        if not isinstance(about.get(word), str):
            raise TraceError(file, word, about.get(word), "text")
    return about


def _check(file: str, trace: Trace) -> None:
    """Raise `TraceError` for the first field of *trace* that breaks the format."""
    heat = trace.temperature
    if isinstance(heat, bool) or not isinstance(heat, int | float) or not 0 <= heat < float("inf"):
        raise TraceError(file, "temperature", heat, "a number, 0 (greedy) or more")
    requests = len(trace.category)
    _check_array(file, "length", trace.length, np.int32, (requests,))
    _check_array(file, "loop_start", trace.loop_start, np.int32, (requests,))
    _check_range(file, "length", trace.length, 1, None)
    late = trace.loop_start > trace.length
    if late.any():
        row = int(late.argmax())
        raise TraceError(file, f"loop_start[{row}]", int(trace.loop_start[row]), f"0 to {int(trace.length[row])}")
    _check_range(file, "loop_start", trace.loop_start, 1, None)
    positions = int(trace.length.sum(dtype=np.int64))
    _check_array(file, "accepted", trace.accepted, np.uint8, (positions,))
    chain = trace.confidence.shape[-1] if trace.confidence.ndim == 2 else CHAIN
    _check_array(file, "confidence", trace.confidence, np.uint8, (positions, min(chain, LONGEST_CHAIN)))
    _check_range(file, "accepted", trace.accepted, 0, chain)
    _check_range(file, "confidence", trace.confidence, 0, LEVELS - 1)
    if trace.match is None and trace.looked_up is None:
        return
    for name, array, most in (("match", trace.match, LONGEST), ("looked_up", trace.looked_up, DRAFTS)):
        if array is None:
            raise TraceError(file, name, None, f"both of {', '.join(OF_LOOKUPS)}, or none")
        _check_array(file, name, array, np.uint8, (positions,))
        _check_range(file, name, array, 0, most)


def _check_array(file: str, key: str, array: npt.NDArray[Any], kind: type, shape: tuple[int, ...]) -> None:
    if array.dtype != kind or array.shape != shape:
        found = f"{array.dtype} {list(array.shape)}"
        raise TraceError(file, key, found, f"{np.dtype(kind)} {list(shape)}")


def _check_range(file: str, key: str, array: npt.NDArray[Any], low: int, high: int | None) -> None:
    wrong = (array < low) | (False if high is None else array > high)
    if np.any(wrong):
        row = tuple(int(i) for i in np.argwhere(wrong)[0])
        accepted = f"{low} or more" if high is None else f"{low} to {high}"
        raise TraceError(file, f"{key}[{', '.join(map(str, row))}]", int(array[row]), accepted)
