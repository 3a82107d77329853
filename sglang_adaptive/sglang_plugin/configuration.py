"""The configuration that a server was launched with, parsed once in each of its processes."""

from __future__ import annotations

from functools import lru_cache

from sglang_adaptive.policy.config import AdaptiveConfig, file_stamp, load_config

Stamp = tuple[int, int, int] | None


def read_once(path: str | None) -> AdaptiveConfig:
    """Return the checked configuration of the file *path*, None for the built-in one. Raises ConfigError.

    A file that has changed since is read again: the next server of this process may have another one.
    """
    return _read(path, file_stamp(path or ""))


def configuration() -> AdaptiveConfig:
    """Return the configuration of the server that this process belongs to."""
    from sglang.srt.runtime_context import get_spec

    return read_once(get_spec().speculative_adaptive_config)


@lru_cache(maxsize=1)
def _read(path: str | None, stamp: Stamp) -> AdaptiveConfig:
    return load_config(path)
