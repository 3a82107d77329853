"""``python -m sglang_adaptive.lab.cpu_engine.start ...`` is ``python -m sglang.launch_server ...``, started faster."""

from __future__ import annotations

import runpy
import sys

from sglang_adaptive.lab.cpu_engine.nursery import open_nursery

MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.speculative.eagle_worker_v2",
)


def main() -> None:
    """Run SGLang's server in this process."""
    if sys.platform == "linux":
        try:
            open_nursery(MODULES)
        except OSError as error:
            print(f"sglang-adaptive: every process imports SGLang for itself: {error}", file=sys.stderr)
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
