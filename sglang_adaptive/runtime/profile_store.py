"""Cost profiles on disk: one file per key, replaced atomically, shared by servers with that key, saved at intervals."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sglang_adaptive.policy.profile import VERSION, CostProfile, ProfileError, ProfileKey, loads_profile

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
LOCK_SECONDS = 2.0


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/sglang-adaptive/profiles``, under ``~/.cache`` when that is unset or relative."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "sglang-adaptive" / "profiles"


class ProfileStore:
    """The profile of one key in a folder. File problems are logged once per cause, not raised."""

    def __init__(self, key: ProfileKey, folder: Path) -> None:
        self.key, self.folder = key, folder
        words = re.sub(r"[^A-Za-z0-9]+", "-", key.target_model).strip("-")[-40:].lower() or "model"
        self.path = self.folder / f"{words}-{key.digest()}.v{VERSION}.json"
        self.saved_at: float | None = None
        """Unix time in seconds at which the loaded or saved file was written; None when there is none."""
        self._warned: set[str] = set()

    def load(self) -> CostProfile | None:
        """Return the stored profile; None without a usable one. An invalid file is renamed."""
        with contextlib.suppress(ProfileError, OSError):
            return self._read()
        with self._locked() as locked:  # again, so that no other server replaces the file meanwhile
            return self._read_or_set_aside() if locked else None

    def save(self, profile: CostProfile) -> bool:
        """Write *profile*, merged with the cells that only the file has; return whether it was written.

        After a crash the file is the old or the new one. Nothing is written if another server holds the lock for
        ``LOCK_SECONDS`` or the disk fails.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked() as locked:
                if not locked:
                    return False
                stored = self._read_or_set_aside()
                self._replace((profile if stored is None else profile.merged(stored)).dumps())
                self.saved_at = time.time()
        except OSError as error:
            self._warn("write", f"cost profile {self.path}: cannot be written ({error.strerror}); it will be lost")
            return False
        return True

    def _read(self) -> CostProfile | None:
        try:
            # Non-blocking, because a FIFO would block server start.
            with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
                status = os.fstat(stream.fileno())
                data = stream.read(MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
                written = status.st_mtime
        except FileNotFoundError:
            return None
        name = str(self.path)
        if data is None:
            raise ProfileError(name, None, "is not a regular file", "a cost profile")
        if len(data) > MAX_BYTES:
            raise ProfileError(name, None, f"is larger than {MAX_BYTES} bytes", "a cost profile")
        try:
            profile = loads_profile(data.decode("utf-8"), name)
        except UnicodeDecodeError:
            raise ProfileError(name, None, "is not UTF-8", "a cost profile") from None
        if profile.key != self.key:
            raise ProfileError(name, "key", "is from another server", "this server's key", "foreign")
        self.saved_at = written
        return profile

    def _read_or_set_aside(self) -> CostProfile | None:
        """Return the stored profile, and rename an unusable file; the lock must be held."""
        try:
            return self._read()
        except ProfileError as error:
            aside = self.path.with_name(f"{self.path.name}.{error.reason}")
            with contextlib.suppress(OSError):
                os.replace(self.path, aside)
            self._warn("bad", f"cost profile set aside as {aside.name}: {error}")
        except OSError as error:
            self._warn("read", f"cost profile {self.path}: cannot be read ({error.strerror}); starting without it")
        return None

    def _replace(self, text: str) -> None:
        """Replace the file; the lock must be held, so that one name for the new file is enough."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the key's lock; yield False if another server holds it. The lock ends with its process."""
        try:
            handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            self._warn("lock", f"cost profile {self.path}: cannot be locked ({error.strerror})")
            yield False
            return
        try:
            yield _acquire(handle)
        finally:
            os.close(handle)

    def _warn(self, cause: str, text: str) -> None:
        if cause not in self._warned:
            self._warned.add(cause)
            logger.warning("%s", text)


def _acquire(handle: int) -> bool:
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.02)


SAVE_SECONDS = 60.0
CLOSE_SECONDS = 10.0


class ProfileSaver:
    """Writes a profile at most once per ``SAVE_SECONDS``, outside the serving thread, and at the end."""

    def __init__(self, store: ProfileStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._next = now() + SAVE_SECONDS
        self._thread: threading.Thread | None = None

    def offer(self, make: Callable[[], CostProfile]) -> None:
        """Write what *make* returns if a save is due.

        *make* runs in the calling thread, so it may read the serving thread's state. Another thread writes.
        """
        if self._now() < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = self._now() + SAVE_SECONDS
        profile = make()
        self._thread = threading.Thread(target=self._store.save, args=(profile,), name="profile-saver", daemon=True)
        self._thread.start()

    def close(self, profile: CostProfile) -> None:
        """Write *profile* now."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        self._store.save(profile)
