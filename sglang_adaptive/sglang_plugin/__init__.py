"""The only package that uses SGLang's internals, besides cpu_engine, which serves without a GPU.

SGLang calls :func:`register` in every process of a server, before it parses arguments. It hooks two functions of
``ServerArgs``. In a launcher these check whether adaptive speculation is requested, the configuration, and this
SGLang's signatures; only then do they add the other hooks. Other processes do not call them. A child process adds hooks
only if its launcher has set ACTIVE in the environment. So a server without adaptive speculation runs stock code, except
for these two functions, which call the original unchanged.
"""

from __future__ import annotations

import multiprocessing
import os
import sys


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``."""
    from sglang_adaptive.sglang_plugin import env, hooks
    from sglang_adaptive.sglang_plugin.hooks import Process

    wanted = list(hooks.hooks(Process.ENTRY))
    if os.environ.get(env.ACTIVE) == "1" and multiprocessing.parent_process() is not None:
        hooks.place_at_once()
        wanted += hooks.hooks(Process.EVERY)
        # The scheduler's entry function is in this module, so only a scheduler has it loaded this early. In a
        # detokenizer the same hooks would import the whole model stack.
        if "sglang.srt.managers.scheduler" in sys.modules:
            wanted += hooks.of_scheduler()
    hooks.install(wanted)
