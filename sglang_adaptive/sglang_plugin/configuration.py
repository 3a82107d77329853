"""The configuration that a server was launched with: read once, by its launcher, and passed on with SGLang's arguments.

A child process gets SGLang's arguments from its launcher, and with them what the launcher has read. So all ranks of a
node have the same configuration, even if the file changes while they start. Each node has a launcher and a file of its
own, so the ranks compare what they got.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.config import AdaptiveConfig, Stamp, describe_change, file_stamp, load_config, locate
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import env, features
from sglang_adaptive.sglang_plugin.notes import NOTE


@dataclass(frozen=True, slots=True)
class Reading:
    """A configuration as it was read at launch."""

    name: str | None
    """The value of ``--speculative-adaptive-config``; None without one."""
    path: str | None
    """The file, of the user or of a preset."""
    stamp: Stamp | None
    """The file's `file_stamp` just before it was read."""
    config: AdaptiveConfig


_resolving: ContextVar[AdaptiveConfig | None] = ContextVar("configuration of the arguments that resolve", default=None)


def configuration() -> AdaptiveConfig:
    """Return the configuration of the server that this process belongs to, or whose arguments it resolves."""
    from sglang.srt.runtime_context import get_server_args, get_spec

    return _resolving.get() or _read_once(get_server_args(), get_spec().speculative_adaptive_config).config


def reading_of(args: Any) -> Reading:
    """Return what was read for *args*, a command line or ServerArgs, and keep it there; the first call reads.

    Raises:
        ConfigError: The configuration is unusable.
    """
    return _read_once(args, args.speculative_adaptive_config)


def _read_once(args: Any, name: str | None) -> Reading:
    note = getattr(args, NOTE, {})
    found: Reading | None = note.get("reading")
    if found is None or found.name != name:  # a program may change its arguments before it launches
        path = None if name is None else locate(name)
        stamp = None if path is None else file_stamp(path)
        found = note["reading"] = Reading(name, path, stamp, load_config(path))
        setattr(args, NOTE, note)
    return found


def pass_on(args: Any, server_args: Any) -> None:
    """Let *server_args*, made from the command line *args*, keep what was read for it."""
    if hasattr(args, NOTE):
        setattr(server_args, NOTE, getattr(args, NOTE))


def require_on_all_ranks(config: AdaptiveConfig) -> None:
    """Raise ConfigError on all tensor-parallel ranks, which call it together, unless *config* and features agree."""
    from sglang.srt.runtime_context import get_parallel

    mine = {**config.as_dict(), env.OFF: ",".join(sorted(features.turned_off()))}
    first, *others = get_parallel().tp_group.all_gather_object(mine)
    for rank, other in enumerate(others, start=1):
        if other != first:
            problem = f"differs on tensor-parallel rank {rank}: {describe_change(first, other)}"
            raise ConfigError(config.source, None, problem, "the same configuration on all nodes")


@contextmanager
def resolving(server_args: Any) -> Iterator[None]:
    """Let `configuration` be that of *server_args*, which no process has published yet."""
    token = _resolving.set(reading_of(server_args).config)
    try:
        yield
    finally:
        _resolving.reset(token)
