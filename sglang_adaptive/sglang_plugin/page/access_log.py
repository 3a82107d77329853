"""Keeps the polls of an open page, one a second, out of the server's log."""

from __future__ import annotations

import logging

LOGGER = "uvicorn.access"


class _WithoutPolls(logging.Filter):
    """Drops answered polls of one path; refusals and errors are still logged."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record; uvicorn's has client, method, path, HTTP version, status."""
        match record.args:
            case (_, "GET", str(path), _, 200):
                return path.partition("?")[0] != self.path
        return True


def leave_out_polls(path: str) -> None:
    """Stop logging answered requests for *path*; called at its first poll, so other servers have no filter."""
    log = logging.getLogger(LOGGER)
    if not any(isinstance(present, _WithoutPolls) and present.path == path for present in log.filters):
        log.addFilter(_WithoutPolls(path))
