"""The cost profile of a server: read at start-up on the first rank, shared with the others, saved while serving."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.runtime.profile_saver import ProfileSaver
from sglang_adaptive.runtime.profile_store import ProfileStore, default_folder
from sglang_adaptive.sglang_plugin.scheduler.profile_key import profile_key

logger = logging.getLogger(__name__)

MEASURED = "learnt in service by the throughput policy"
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


def share_known(policy: ThroughputPolicy) -> CostProfile | None:
    """Return all that the first rank knows of round times, on every rank; they call it together."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    known = None
    if group.rank_in_group == 0:
        try:
            known = policy.known_profile(profile_key(), MEASURED)
        except Exception:  # the other ranks wait for the broadcast
            logger.warning("adaptive: the measured round times could not be handed on", exc_info=True)
    shared: CostProfile | None = group.broadcast_object(known, src=0)
    return shared


class CostSharing:
    """The controller's ``share_cost`` for one policy: a broadcast, and on the first rank a save when it is time."""

    def __init__(self, policy: AdaptivePolicy) -> None:
        from sglang.srt.runtime_context import get_parallel

        self._group = get_parallel().tp_group
        self._policy: ThroughputPolicy | None = None
        if isinstance(policy, ThroughputPolicy) and self._group.rank_in_group == 0:
            self._policy = policy
            self._saver = ProfileSaver(_store(policy.options.profile_dir))
            atexit.register(self._close)

    def __call__(self, payload: Any) -> Any:
        """Return the first rank's *payload*, on every rank."""
        policy = self._policy
        if policy is not None:
            self._saver.offer(lambda: _learnt(policy))
        return self._group.broadcast_object(payload)

    def saved_at(self) -> float | None:
        """Return the Unix time at which this server's profile was last written to disk, as far as this rank knows.

        Ranks other than the first neither load nor save one, and know nothing.
        """
        return None if self._policy is None else _store(self._policy.options.profile_dir).saved_at

    def retire(self) -> None:
        """Keep what the policy has learnt, off this thread, now that another one takes its place."""
        if self._policy is None:
            return
        atexit.unregister(self._close)  # it would put these times over newer ones
        policy, self._policy = self._policy, None
        try:
            learnt = _learnt(policy)
        except Exception:
            logger.warning("adaptive: measured round times could not be kept", exc_info=True)
            return
        if learnt.cells:
            save = threading.Thread(target=self._saver.close, args=(lambda: learnt,), name="profile-saver", daemon=True)
            save.start()

    def _close(self) -> None:
        """Save what was learnt since the last time, as the scheduler's process ends."""
        policy = self._policy
        if policy is not None and _learnt(policy).cells:
            self._saver.close(lambda: _learnt(policy))


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
    return policy.export_profile(profile_key(), f"{MEASURED}, until {day}")
