"""Which tests the processes of pytest-xdist run: those that start servers one after the other, all others by file.

A server takes up to 3 GB, and the processes know nothing of each other's.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WITH_SERVERS = ("tests/engine/", "tests/campaign/")
WITHOUT = ("tests/engine/without_servers/", "tests/campaign/without_servers/")


class Turns(LoadScopeScheduling):
    """pytest-xdist's own scheduler, with these scopes."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "servers" if file.startswith(WITH_SERVERS) and not file.startswith(WITHOUT) else file
