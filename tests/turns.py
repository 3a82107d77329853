"""Assigns tests to pytest-xdist processes: tests that share something go to one process, all others go by file.

A server takes up to 3 GB, and the processes know nothing of each other, so one runs every test that shares servers. The
other starts with tests that fork from a process that has imported SGLang (seven CPU seconds) and tests that start their
own servers, while there is memory for both. Whichever process is free takes the remaining files.
"""

from __future__ import annotations

import psutil
from xdist.scheduler import LoadScopeScheduling

WITH_SERVERS = ("tests/engine/", "tests/campaign/")
FORKS = (
    *("tests/engine/without_servers/", "tests/unit/sglang_plugin/", "tests/unit/cpu_engine/", "tests/launch_lines/"),
    *("tests/unit/policy/test_ema_matches_sglang.py", "tests/unit/cli/test_serve_cpu.py"),
    "tests/unit/train/test_smollm2_together.py",
)
OWN = ("tests/campaign/test_campaign.py", "tests/engine/test_demo.py")
"""Files that share no server. Those of SmolLM2 do not either, but its demo runs five, too many to run in parallel."""
FOR_BOTH = 20 * 10**9
"""Bytes that must be available at the start for both processes to run at once."""


class Turns(LoadScopeScheduling):
    """pytest-xdist's own scheduler with these scopes; the scopes with the most tests start first."""

    _at_once = psutil.virtual_memory().available >= FOR_BOTH

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if file.startswith(FORKS) or (file in OWN and self._at_once):
            return "forks"
        return "servers" if file.startswith(WITH_SERVERS) else file
