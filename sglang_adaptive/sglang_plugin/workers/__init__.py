"""Adaptive subclasses of workers that SGLang 0.5.23 runs with fixed steps, one file each.

May import hooking, scheduler, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Hook, Process

HOOKS = (
    Hook(
        SRT + "arg_groups.speculative_hook._handle_ngram",
        "after",
        "workers.ngram_arguments:steps_by_breadth",
        ("server_args",),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "around",
        "workers.choice:create_worker",
        ("self", "server_args"),
    ),
)
