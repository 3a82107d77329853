"""Saves a cost profile at intervals, in another thread than the serving one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.runtime.profile_store import ProfileStore

SAVE_SECONDS = 60.0
CLOSE_SECONDS = 10.0


class ProfileSaver:
    """Writes a profile at most once in ``SAVE_SECONDS``, and at the end."""

    def __init__(self, store: ProfileStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._next = now() + SAVE_SECONDS
        self._thread: threading.Thread | None = None

    def offer(self, make: Callable[[], CostProfile]) -> bool:
        """Write what *make* returns if a save is due; return whether a write was begun.

        *make* runs in the calling thread, so it may read the serving thread's state. Another thread writes.
        """
        if self._now() < self._next or (self._thread is not None and self._thread.is_alive()):
            return False
        self._next = self._now() + SAVE_SECONDS
        profile = make()
        self._thread = threading.Thread(target=self._store.save, args=(profile,), name="profile-saver", daemon=True)
        self._thread.start()
        return True

    def close(self, make: Callable[[], CostProfile]) -> bool:
        """Write what *make* returns now; return whether it was written."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        return self._store.save(make())
