"""The only part of the package that knows SGLang's internals (with cpu_engine, which serves without a GPU).

SGLang calls :func:`register` in every process of a server, before it parses arguments. Two doors are hooked, both on
``ServerArgs``. In a launcher they see whether adaptive speculation is asked for, check the configuration and this
SGLang's shape, and only then hook anything else; in other processes nobody passes through them. A child process
hooks more only when its launcher said so through the environment. So a server that is not asked to be adaptive runs
stock code, two pass-through doors aside.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

ACTIVE = "SGLANG_ADAPTIVE_ACTIVE"
"""Environment variable by which the launcher tells its children that the server is asked to be adaptive."""


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``."""
    from sglang_adaptive.sglang_plugin.hooking import registry
    from sglang_adaptive.sglang_plugin.hooking.hook import Process

    registry.add(registry.hooks(Process.ENTRY))
    if os.environ.get(ACTIVE) == "1" and multiprocessing.parent_process() is not None:
        registry.add(registry.hooks(Process.EVERY))
        # The scheduler's entry function lives in this module, so only a scheduler has it loaded this early;
        # in a detokenizer the same hooks would import the whole model stack for nothing.
        if "sglang.srt.managers.scheduler" in sys.modules:
            registry.add(registry.of_scheduler())
