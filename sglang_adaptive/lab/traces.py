"""Recorded acceptance: how many drafts of a chain are accepted at every position of real outputs.

Traces are compressed ``.npz`` files; every array is checked when it is read.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_adaptive.lookups.lookup import DRAFTS, LONGEST, Text
from sglang_adaptive.policy.errors import printable, shown

FORMAT_VERSION = 1
WORDS = ("target", "draft", "prompts", "hardware", "command", "date")
ARRAYS = ("about", "category", "length", "loop_start", "accepted")
OF_LOOKUPS = ("match", "looked_up")
"""Arrays that a trace may lack."""


class TraceError(ValueError):
    """An unusable trace: which file, which key, what was found, what is accepted."""

    def __init__(self, file: str, key: str | None, value: object, expected: str) -> None:
        self.file = file
        self.key = key
        self.value = value
        self.expected = expected
        place = printable(file) if key is None else f"{printable(file)}: {printable(key)}"
        super().__init__(f"{place}: {shown(value)}; expected {expected}")

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str | None, object, str]]:
        # Exception pickles only its message, and a replay may run in other processes.
        return type(self), (self.file, self.key, self.value, self.expected)


CHAIN = 7
"""Drafts in a recorded chain of EAGLE-3."""

LONGEST_CHAIN = 63
"""Maximum drafts of a chain or block in a trace."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Acceptance at every position of the outputs of *R* requests, *N* positions in all.

    Position t of a request is a round whose last known token is output token t. The round's chain of C drafts proposes
    tokens t + 1 to t + C; C is 7, or the drafts of a block. A round of s steps accepts ``k = min(L(t), s)`` of them,
    and the next one starts at t + k + 1. The first round starts at 0: prefill yields output token 0. A request is done
    at its length or beyond. The draft proposes its most likely token; above temperature 0 the text is one sample.
    """

    target: str
    """Model that generated the outputs."""

    draft: str
    """Draft model that proposed."""

    prompts: str
    """Where the prompts come from."""

    temperature: float
    """Temperature of the target's sampling; 0 is greedy."""

    hardware: str
    """Hardware of the recorder."""

    command: str
    """Command that records this trace."""

    date: str
    """Day of the recording, YYYY-MM-DD."""

    category: tuple[str, ...]
    """R kinds of text, one per request."""

    length: npt.NDArray[np.int32]
    """[R] positions of each request, one or more."""

    loop_start: npt.NDArray[np.int32]
    """[R] position where the first exact repetition starts; the request's length if there is none."""

    accepted: npt.NDArray[np.uint8]
    """[N] accepted drafts of the chain, 0 to C, request by request."""

    match: npt.NDArray[np.uint8] | None = None
    """[N] tokens before the drafts that agree with an earlier place of the request's text; see ``lookups``.

    None, like ``looked_up``, in a trace that was recorded without its tokens."""

    looked_up: npt.NDArray[np.uint8] | None = None
    """[N] number of right drafts among those looked up there, 0 to 32."""

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """[R] row of each request's first position in ``accepted``."""
        lengths = self.length.astype(np.int64)
        return np.cumsum(lengths) - lengths

    def requests(self) -> Iterator[tuple[str, npt.NDArray[np.uint8], int]]:
        """Yield category, accepted drafts [n] and first row of each request; the arrays are views.

        The request's part of ``match`` and ``looked_up`` is the n rows from its first one on.
        """
        for category, start, length in zip(self.category, self.starts.tolist(), self.length.tolist(), strict=True):
            yield category, self.accepted[start : start + length], start

    def select(self, rows: npt.ArrayLike) -> Trace:
        """Return the trace of some requests, by index or mask, in the given order."""
        chosen = np.arange(len(self.category))[np.asarray(rows)]
        return self._cut(chosen, self.length[chosen])

    def without_repetitions(self) -> Trace:
        """Return the trace with each request cut where its first exact repetition starts."""
        return self._cut(np.arange(len(self.category)), self.loop_start)

    def _cut(self, chosen: npt.NDArray[np.int64], length: npt.NDArray[np.int32]) -> Trace:
        starts = self.starts[chosen]
        rows = [np.arange(start, start + kept) for start, kept in zip(starts, length, strict=True)]
        at = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return replace(
            self,
            category=tuple(self.category[i] for i in chosen),
            length=length.astype(np.int32),
            loop_start=np.minimum(self.loop_start[chosen], length).astype(np.int32),
            accepted=self.accepted[at],
            match=None if self.match is None else self.match[at],
            looked_up=None if self.looked_up is None else self.looked_up[at],
        )


def lookups(ids: Sequence[int], prompt: int, positions: int) -> npt.NDArray[np.uint8]:
    """Return [positions, 2]: ``match`` and ``looked_up`` of the text *ids* [T], whose output starts at *prompt*."""
    text = Text(ids, prompt)
    found = [text.at(prompt + at) for at in range(positions)]
    return np.array([(one.match, one.tokens - 1 if one.match else 0) for one in found], np.uint8).reshape(-1, 2)


# Traces as files.


def write(path: str | Path, trace: Trace) -> None:
    """Check *trace* and write it to *path*.

    Raises:
        TraceError: the trace violates its own format.
        OSError: the file cannot be written.
    """
    _check(str(path), trace)
    about = {"format_version": FORMAT_VERSION, "temperature": trace.temperature}
    about.update((word, getattr(trace, word)) for word in WORDS)
    with Path(path).open("wb") as file:  # keeps a name without .npz
        np.savez_compressed(
            file,
            about=np.array(json.dumps(about)),
            category=np.array(trace.category, np.str_),
            length=trace.length,
            loop_start=trace.loop_start,
            accepted=trace.accepted,
            **{name: array for name in OF_LOOKUPS if (array := getattr(trace, name)) is not None},
        )


def read(path: str | Path) -> Trace:
    """Return the trace in *path*.

    Raises:
        TraceError: the file cannot be read, or is not a trace of this format; one line, with file, key and value.
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
    except ValueError as error:  # numpy raises it for other files and for pickled arrays
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
    """Raise `TraceError` for the first field of *trace* that violates the format."""
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
    _check_range(file, "accepted", trace.accepted, 0, LONGEST_CHAIN)
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
