"""Which tests the processes of pytest-xdist run: those that share servers one after the other, all others by file.

A server takes up to 3 GB, and the processes know nothing of each other's. So one process shares servers, and those that
tests start for themselves, three at most, run in one process as well: as a rule the other one.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WITH_SERVERS = ("tests/engine/", "tests/campaign/")
WITHOUT = ("tests/engine/without_servers/", "tests/campaign/without_servers/")
OWN = ("tests/campaign/test_campaign.py", "tests/engine/test_demo.py", "tests/engine/test_smollm2.py")
"""Files that share none."""


class Turns(LoadScopeScheduling):
    """pytest-xdist's own scheduler, with these scopes."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file in OWN:
            return "own servers"
        return "servers" if file.startswith(WITH_SERVERS) and not file.startswith(WITHOUT) else file
