"""Which tests the processes of pytest-xdist run: those that share servers one after the other, all others by file.

A server takes up to 3 GB, and the processes know nothing of each other's. So one process shares servers. Tests
that start their own, three at most, run in one process as well: the other one, where there is memory for both.
"""

from __future__ import annotations

import psutil
from xdist.scheduler import LoadScopeScheduling

WITH_SERVERS = ("tests/engine/", "tests/campaign/")
WITHOUT = ("tests/engine/without_servers/", "tests/campaign/without_servers/")
OWN = ("tests/campaign/test_campaign.py", "tests/engine/test_demo.py")
"""Files that share none. Those of SmolLM2 share none either, but its demo runs five, too many beside others."""
FOR_BOTH = 20 * 10**9
"""Bytes that have to be available when the tests begin for both to run at the same time."""


class Turns(LoadScopeScheduling):
    """pytest-xdist's own scheduler, with these scopes."""

    _at_once = psutil.virtual_memory().available >= FOR_BOTH

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file in OWN and self._at_once:
            return "own servers"
        return "servers" if file.startswith(WITH_SERVERS) and not file.startswith(WITHOUT) else file
