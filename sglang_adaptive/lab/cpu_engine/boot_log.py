"""Reads the progress of a starting server from its log."""

from __future__ import annotations

from pathlib import Path

READY = "ready"

# Log lines of SGLang, in this order, and the stages that they mean.
_STAGES: tuple[tuple[str, str], ...] = (
    ("server_args=", "arguments accepted, starting processes"),
    ("Init parallel begin", "processes started"),
    ("Load weight begin", "loading weights"),
    ("Memory pool end", "KV cache allocated"),
    ("Uvicorn running on", "listening"),
    ("The server is fired up and ready to roll", READY),
)


class BootLog:
    """Reads the log file from its beginning, each time only the new part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._waiting = list(_STAGES)
        self.ready = False

    def new_stages(self) -> list[str]:
        """Return the stages reached since the last call; a stage skipped by the server is reported with the next."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            chunk = log.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        reached: list[str] = []
        for line in lines:
            reached += self._stages_of(line.decode(errors="replace"))
        self.ready = self.ready or READY in reached
        return reached

    def _stages_of(self, line: str) -> list[str]:
        for index, (text, _) in enumerate(self._waiting):
            if text in line:
                passed = [stage for _, stage in self._waiting[: index + 1]]
                del self._waiting[: index + 1]
                return passed
        return []
