"""Recorded acceptance: how many drafts of a chain are accepted at every position of real outputs.

Traces are compressed ``.npz`` files, which `benchmarks.traces` writes; they are checked when they are read.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_adaptive.policy.errors import printable
from sglang_adaptive.policy.observation import DRAFTS, LONGEST

FORMAT_VERSION = 1
WORDS = ("target", "draft", "prompts", "hardware", "command", "date")
ARRAYS = ("about", "category", "length", "loop_start", "accepted")
OF_LOOKUPS = ("match", "looked_up")
"""Arrays that a trace may lack."""


class TraceError(ValueError):
    """An unusable trace; one line with the file and what is wrong with it."""


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

    about: Mapping[str, Any]
    """What the recorder says of it: the models, the `prompts`, the `temperature`, the `hardware`, the `command` and the
    `date`, YYYY-MM-DD."""
    category: tuple[str, ...]
    """R kinds of text, one per request."""
    length: npt.NDArray[np.int32]
    """[R] positions of each request, one or more."""
    loop_start: npt.NDArray[np.int32]
    """[R] position where the first exact repetition starts; the request's length if there is none."""
    accepted: npt.NDArray[np.uint8]
    """[N] accepted drafts of the chain, 0 to C, request by request."""
    match: npt.NDArray[np.uint8] | None = None
    """[N] tokens before the drafts that agree with an earlier place of the request's text; see ``Text.at``.

    None, like ``looked_up``, in a trace that was recorded without its tokens."""
    looked_up: npt.NDArray[np.uint8] | None = None
    """[N] number of right drafts among those looked up there, 0 to 32."""

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """[R] row of each request's first position in ``accepted``."""
        lengths = self.length.astype(np.int64)
        return np.cumsum(lengths) - lengths

    def without_repetitions(self) -> Trace:
        """Return the trace with each request cut where its first exact repetition starts."""
        return self.cut(np.arange(len(self.category)), self.loop_start)

    def cut(self, chosen: npt.NDArray[np.int64], length: npt.NDArray[np.int32]) -> Trace:
        """Return the trace of the *chosen* requests, in this order, each with only its first *length* positions."""
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


def read(path: str | Path) -> Trace:
    """Return the trace in *path*.

    Raises:
        TraceError: the file cannot be read, or is not a trace of this format.
    """
    file = printable(str(path))
    try:
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in (*ARRAYS, *OF_LOOKUPS) if name in loaded.files}
        about, category = json.loads(str(arrays["about"][()])), arrays["category"]
        if about["format_version"] != FORMAT_VERSION or category.dtype.kind != "U":
            raise ValueError
        trace = Trace(
            {**{word: str(about[word]) for word in WORDS}, "temperature": float(about["temperature"])},
            category=tuple(category.reshape(-1).tolist()),
            **{name: arrays[name] for name in ("length", "loop_start", "accepted")},
            **{name: arrays.get(name) for name in OF_LOOKUPS},
        )
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror or error})") from error
    # Whatever numpy, zipfile and json say of a file that is another, is of another version or is damaged.
    except (EOFError, KeyError, RecursionError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise TraceError(f"{file}: not a whole trace of format {FORMAT_VERSION}") from error
    check(file, trace)
    return trace


def check(file: str, trace: Trace) -> None:
    """Raise `TraceError` for the first field of *trace* that violates the format."""
    requests, positions = len(trace.category), int(trace.length.sum(dtype=np.int64))
    wanted: dict[str, tuple[type, int, int, Any]] = {
        "length": (np.int32, requests, 1, None),
        "loop_start": (np.int32, requests, 1, trace.length),
        "accepted": (np.uint8, positions, 0, LONGEST_CHAIN),
    }
    if trace.match is not None or trace.looked_up is not None:
        wanted |= {"match": (np.uint8, positions, 0, LONGEST), "looked_up": (np.uint8, positions, 0, DRAFTS)}
    for key, (kind, size, low, high) in wanted.items():
        array = np.asarray(getattr(trace, key))
        if array.dtype != kind or array.shape != (size,):
            expected = f"{np.dtype(kind)} [{size}]"
            raise TraceError(f"{file}: {key}: got {array.dtype} {list(array.shape)}; expected {expected}")
        if (array < low).any() or (high is not None and (array > high).any()):
            most = " or more" if high is None else " to the length" if key == "loop_start" else f" to {high}"
            raise TraceError(f"{file}: {key}: got {array.min()} to {array.max()}; expected {low}{most}")
