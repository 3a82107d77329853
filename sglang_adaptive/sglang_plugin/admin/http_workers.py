"""The launcher's part of several HTTP workers (``--tokenizer-worker-num``).

Each worker is a new process in which SGLang loads no plugins. But the application that the workers import can be named,
and so each imports ``http_worker``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import Any

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.releases import import_in_workers

logger = logging.getLogger(__name__)

APPLICATION = "sglang_adaptive.sglang_plugin.http_worker:app"


def serve_our_application() -> None:
    """Let the workers import this package's application and log what it says, and SIGHUP reach one of them."""
    from uvicorn.config import LOGGING_CONFIG

    named = import_in_workers(APPLICATION)
    if named != APPLICATION:
        env.HTTP_APPLICATION.set(named)
    # As SGLang does for its own logger: a worker configures no other.
    LOGGING_CONFIG["loggers"]["sglang_adaptive"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    try:
        from uvicorn.supervisors import multiprocess

        supervisor: Any = multiprocess.Multiprocess
        assert callable(supervisor.handle_hup), "what uvicorn calls on SIGHUP"
        supervisor.handle_hup = _pass_on
    except Exception:
        logger.exception("adaptive: SIGHUP restarts the HTTP workers, as without this package")


def _pass_on(supervisor: Any) -> None:
    """Instead of uvicorn's restart of all workers, which ends their requests: let one read the configuration again."""
    for process in supervisor.processes:
        with contextlib.suppress(OSError):  # it has just ended, and will be replaced
            return os.kill(process.pid, signal.SIGHUP)
