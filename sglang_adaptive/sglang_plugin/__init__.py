"""The only package that uses SGLang's internals (with cpu_engine, which serves without a GPU).

SGLang calls :func:`register` in every process of a server, before it parses arguments. It hooks two functions of
``ServerArgs``. In a launcher these check whether adaptive speculation is requested, the configuration, and this
SGLang's signatures; only then they add the other hooks. Other processes do not call them. A child process adds hooks
only where its launcher set ACTIVE in the environment. So a server without adaptive speculation runs stock code, except
these two functions, which call the original unchanged.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

ACTIVE = "SGLANG_ADAPTIVE_ACTIVE"
"""Environment variable that the launcher of an adaptive server sets to "1" for its children."""


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``."""
    from sglang_adaptive.sglang_plugin.hooking import registry
    from sglang_adaptive.sglang_plugin.hooking.hook import Process

    wanted = list(registry.hooks(Process.ENTRY))
    if os.environ.get(ACTIVE) == "1" and multiprocessing.parent_process() is not None:
        wanted += registry.hooks(Process.EVERY)
        # The scheduler's entry function is in this module, so only a scheduler has it loaded this early. In a
        # detokenizer the same hooks would import the whole model stack.
        if "sglang.srt.managers.scheduler" in sys.modules:
            wanted += registry.of_scheduler()
    registry.add(wanted)
