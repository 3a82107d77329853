"""Keeps a page that is left open from writing a line a second into the server's log."""

from __future__ import annotations

import logging

LOGGER = "uvicorn.access"


class _WithoutPolls(logging.Filter):
    """Leaves out answered polls of one path; refusals and errors are logged as ever."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged; uvicorn's holds client, method, path, HTTP version, status."""
        match record.args:
            case (_, "GET", str(path), _, 200):
                return path.partition("?")[0] != self.path
        return True


def leave_out_polls(path: str) -> None:
    """Stop logging requests for *path* that are answered; from its first poll on, so that others pay nothing."""
    log = logging.getLogger(LOGGER)
    if not any(isinstance(present, _WithoutPolls) and present.path == path for present in log.filters):
        log.addFilter(_WithoutPolls(path))
