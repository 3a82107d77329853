"""The cost profile of a server: read at start-up on the first rank, shared with the others, saved while serving."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.runtime.profile_saver import ProfileSaver
from sglang_adaptive.runtime.profile_store import ProfileStore, default_folder
from sglang_adaptive.sglang_plugin.profile_key import profile_key

logger = logging.getLogger(__name__)

FOLDER = "SGLANG_ADAPTIVE_PROFILE_DIR"
"""Environment variable: where profiles are kept; ``throughput.profile_dir`` in the configuration goes first."""


def folder(profile_dir: str | None) -> Path:
    """Return where profiles are kept: the configured folder, FOLDER, or the user's cache."""
    chosen = profile_dir or os.environ.get(FOLDER)
    return Path(chosen).expanduser() if chosen else default_folder()


def load_shared(profile_dir: str | None) -> CostProfile | None:
    """Return the profile that the first rank has of this server, on every rank; they call it together."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    found = _load(profile_dir) if group.rank_in_group == 0 else None
    shared: CostProfile | None = group.broadcast_object(found, src=0)
    return shared


def sharing(policy: Any) -> Callable[[Any], Any]:
    """Return the controller's ``share_cost``: a broadcast, and on the first rank a save when it is time."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if not isinstance(policy, ThroughputPolicy) or group.rank_in_group != 0:
        return group.broadcast_object
    saver = ProfileSaver(_store(policy.options.profile_dir))
    atexit.register(_close, saver, policy)

    def share(payload: Any) -> Any:
        saver.offer(lambda: _learnt(policy))
        return group.broadcast_object(payload)

    return share


def saved_at(policy: Any) -> Callable[[], float | None]:
    """Return what says when the profile of this server was last written to disk, as far as this rank knows.

    Ranks other than the first neither load nor save one, and know nothing.
    """
    if not isinstance(policy, ThroughputPolicy):
        return lambda: None
    store = _store(policy.options.profile_dir)
    return lambda: store.saved_at


@cache
def _store(profile_dir: str | None) -> ProfileStore:
    """Return the one store of this process: what it loaded at the start and what it saves are the same file."""
    return ProfileStore(profile_key(), folder(profile_dir))


def _load(profile_dir: str | None) -> CostProfile | None:
    """Load on this rank; whatever goes wrong costs the profile, not the server."""
    try:
        store = _store(profile_dir)
        found = store.load()
    except Exception:
        logger.warning("adaptive: no cost profile could be looked up", exc_info=True)
        return None
    if found is not None:
        logger.info("adaptive: starting from the cost profile %s (%d cells)", store.path, len(found.cells))
    return found


def _learnt(policy: ThroughputPolicy) -> CostProfile:
    day = datetime.now(UTC).date().isoformat()
    return policy.export_profile(profile_key(), f"learnt in service by the throughput policy, until {day}")


def _close(saver: ProfileSaver, policy: ThroughputPolicy) -> None:
    """Save what was learnt since the last time, as the scheduler's process ends."""
    if _learnt(policy).cells:
        saver.close(lambda: _learnt(policy))
