"""``python -m sglang_adaptive.lab.cpu_engine.start ...`` is ``python -m sglang.launch_server ...``, started faster."""

from __future__ import annotations

import importlib
import runpy
import sys

from sglang_adaptive.lab.cpu_engine.nursery import open_nursery
from sglang_adaptive.sglang_plugin import hooks

MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.speculative.eagle_worker_v2",
)


def import_sglang() -> None:
    """Import what a server imports and all hooked modules, and index them for the hooks.

    Forks share both. Otherwise each would spend a third of a second, and memory for every module it scans.
    """
    for name in MODULES:
        importlib.import_module(name)
    hooks.problems()  # looks up every hook; the launcher reports the problems
    hooks.place_at_once().share()


def main() -> None:
    """Run SGLang's server in this process."""
    import_sglang()
    if sys.platform == "linux":
        try:
            open_nursery(MODULES)
        except OSError as error:
            print(f"sglang-adaptive: every process imports SGLang for itself: {error}", file=sys.stderr)
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
