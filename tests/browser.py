"""Headless Chromium, driven through a pipe over its DevTools protocol: no driver, port or package.

The protocol (https://chromedevtools.github.io/devtools-protocol/) is JSON messages that end in a zero byte. The browser
reads them from descriptor 3 and writes them to descriptor 4.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser's executable, or None."""

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1",
         "--no-first-run", "--disable-extensions", "--disable-background-networking",
         "--disable-dev-shm-usage", "--remote-debugging-pipe")  # fmt: skip
DEADLINE = 240.0
_SPAWN = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3), os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(RuntimeError):
    """The browser refused a command, or the page's script raised."""


class Browser:
    """One tab of a headless Chromium with its own profile; use as a context manager."""

    def __init__(self) -> None:
        assert FOUND is not None, "look at FOUND first"
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [FOUND, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPAWN, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._pending, self._count = b"", 0
        self.problems: list[str] = []
        """Errors that the page logged or raised, and what it failed to load."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self._call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open *url* in a window of this size; below 600 pixels it is a phone's."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'", "the page has loaded")

    def cut_off(self, offline: bool = True) -> None:
        self.send(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression, awaited; raises BrowserError when it throws."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def text(self, name: str) -> str:
        """Return the visible text of the element with this id; empty when it is hidden."""
        found: str = self.value(f"document.getElementById({json.dumps(name)}).innerText")
        return found

    def until(self, script: str, what: str) -> Any:
        """Return the first true value of an expression; fail after DEADLINE."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if found := self.value(script):
                return found
            time.sleep(0.1)
        raise AssertionError(f"waited {DEADLINE:.0f} s in vain until {what}; problems: {self.problems}")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        named = {"key": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def write(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def accessibility_tree(self) -> list[tuple[str, str]]:
        """Return (role, name) of every node that a screen reader sees."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        shown = (node for node in nodes if not node["ignored"])
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in shown]

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._count:
                self._note(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            if not select.select([self._in], [], [], DEADLINE)[0]:
                raise BrowserError(f"the browser has not answered for {DEADLINE:.0f} s")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise BrowserError(f"the browser ended with code {self._process.wait()}")
            self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        match event:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.problems.append(json.dumps(details.get("exception", details))[:500])
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error"} as entry}}:
                self.problems.append(f"{entry['text']} {entry.get('url', '')}")
