"""Which tests the processes of pytest-xdist run: those that share something in one process, all others by file.

A server takes up to 3 GB, and the processes know nothing of each other's: one runs every test that shares servers. The
other begins with what is forked from a process that has imported SGLang, which takes a core seven seconds, and with
what starts servers of its own, where there is memory for both. Files are left for whichever is done first.
"""

from __future__ import annotations

import psutil
from xdist.scheduler import LoadScopeScheduling

WITH_SERVERS = ("tests/engine/", "tests/campaign/")
FORKS = (
    *("tests/engine/without_servers/", "tests/campaign/without_servers/", "tests/unit/sglang_plugin/"),
    *("tests/unit/cpu_engine/", "tests/launch_lines/", "tests/unit/policy/test_ema_matches_sglang.py"),
    *("tests/unit/project/test_patches.py", "tests/unit/cli/test_serve_cpu.py"),
    *("tests/unit/train/test_smollm2_together.py",),
)
OWN = ("tests/campaign/test_campaign.py", "tests/engine/test_demo.py")
"""Files that share none. Those of SmolLM2 share none either, but its demo runs five, too many beside others."""
FOR_BOTH = 20 * 10**9
"""Bytes that have to be available when the tests begin for both to run at the same time."""


class Turns(LoadScopeScheduling):
    """pytest-xdist's own scheduler, with these scopes; those of most tests begin."""

    _at_once = psutil.virtual_memory().available >= FOR_BOTH

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file.startswith(FORKS) or (file in OWN and self._at_once):
            return "forks"
        return "servers" if file.startswith(WITH_SERVERS) else file
