"""Recorded acceptance: how far a chain of drafts gets at every position of real outputs."""

from sglang_adaptive.lab.traces.file import read, write
from sglang_adaptive.lab.traces.trace import CHAIN, LEVELS, Trace, TraceError

__all__ = ["CHAIN", "LEVELS", "Trace", "TraceError", "read", "write"]
