"""Configuration changes in the HTTP server's process: by a request, SIGHUP or a watched file."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.config import AdaptiveConfig, Stamp, check_config, file_stamp, read_object
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.sglang_plugin.admin.handlers import CONFIG_KEY, WATCH, Change

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Seconds between checks of a watched file; it is read once two checks agree, so never half written."""
_tasks: set[asyncio.Task[None]] = set()


def in_background(work: Coroutine[Any, Any, None]) -> None:
    """Run *work* in the running event loop, which itself keeps no reference to a task."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


class ConfigChanges:
    """Checks configurations as the launch does, and sends them to the schedulers, one at a time."""

    def __init__(
        self,
        send: Callable[[Change], Awaitable[list[bool]]],
        in_force: Callable[[], Awaitable[dict[str, Any]]],
        built: CapturedSteps,
        path: str | None,
        stamp: Stamp | None,
        changed: Callable[[], None] = lambda: None,
        fit: Callable[[AdaptiveConfig], AdaptiveConfig] = lambda config: config,
    ) -> None:
        """*send* sends a change to the schedulers and returns, for each, whether it applied it.

        *in_force* asks a scheduler for its configuration, which another HTTP worker may have changed. *path* is the
        server's file, if any, and *stamp* its stamp at launch. *changed* is called in the event loop when the server
        starts and after each change. *fit* returns the part of a configuration that the server can run.
        """
        self._send, self._ask_in_force = send, in_force
        self._built, self._changed, self._fit = built, changed, fit
        self._path = path
        self._handled = stamp
        self._one_at_a_time = asyncio.Lock()

    def start(self) -> None:
        """Listen for SIGHUP and watch the file, in the running event loop; errors are only logged."""
        try:
            if threading.current_thread() is threading.main_thread():  # Python's rule for signals
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGHUP, lambda: in_background(self._reread("SIGHUP")))
            if self._path is not None:
                in_background(self._watch(self._path))
            self._changed()
        except Exception:
            logger.exception("adaptive: the configuration file will not be read again")

    async def request(self, content: Any, by: str) -> list[bool]:
        """Apply the configuration object *content* of the client *by*; return for each scheduler whether it applied it.

        Raises ConfigError, with one line, when it is refused; the old configuration stays in force.
        """
        if not isinstance(content, dict):
            raise ConfigError(CONFIG_KEY, None, f"got {shown(content)}", "a configuration object")
        stamp = None if self._path is None else await asyncio.to_thread(file_stamp, self._path)
        updated = await self._apply(content, CONFIG_KEY, by)
        self._handled = stamp  # only later changes of a watched file count
        return updated

    async def _reread(self, by: str) -> None:
        """Read and apply the file; log an error in one line."""
        try:
            if self._path is None:
                flag = "--speculative-adaptive-config"
                raise ConfigError("command line", None, "no configuration file was given", flag)
            self._handled = await asyncio.to_thread(file_stamp, self._path)
            if by == WATCH and not (await self._ask_in_force()).get("watch"):
                return
            content = await asyncio.to_thread(read_object, self._path)
            await self._apply(content, self._path, by)
        except ConfigError as error:
            logger.error("adaptive: %s: %s; the old configuration stays in force", by, error)
        except Exception:
            logger.exception("adaptive: %s: the configuration could not be changed; the old one stays in force", by)

    async def _apply(self, content: dict[str, Any], source: str, by: str) -> list[bool]:
        config = self._fit(check_config(content, source))
        running = await self._ask_in_force()
        config.after_start(content, running)
        config.require_built(self._built, running)
        async with self._one_at_a_time:
            updated = await self._send(Change(content, source, by))
            if not all(updated):
                problem = f"{updated.count(False)} of {len(updated)} schedulers refused it"
                raise ConfigError(source, None, problem, "what their log lines say")
            self._changed()
        return updated

    async def _watch(self, path: str) -> None:
        """Reread the file after each change while the active configuration has ``watch``."""
        seen = self._handled
        while True:
            await asyncio.sleep(POLL_SECONDS)
            last, seen = seen, await asyncio.to_thread(file_stamp, path)
            if seen == last != self._handled:
                await self._reread(WATCH)
