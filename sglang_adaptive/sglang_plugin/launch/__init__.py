"""The launcher: whether a server should adapt and can, and whether its schedulers started with their hooks.

May import hooking, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Hook, Need, Process

HOOKS = (
    Hook(
        SRT + "server_args.ServerArgs.from_cli_args",
        "around",
        "launch.activation:from_cli_args",
        ("args",),
        process=Process.ENTRY,
    ),
    Hook(
        SRT + "server_args.ServerArgs.resolve_once",
        "around",
        "launch.activation:resolve_once",
        ("self",),
        process=Process.ENTRY,
    ),
    Hook(
        SRT + "speculative.adaptive_spec_params.adaptive_unsupported_reason",
        "around",
        "launch.activation:note_reason",
        ("server_args",),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "entrypoints.engine.Engine._launch_scheduler_processes",
        "before",
        "launch.compile_ahead:begin",
        ("server_args",),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "entrypoints.engine._wait_for_scheduler_ready",
        "after",
        "launch.handshake:require_in_schedulers",
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "entrypoints.http_server._wait_and_warmup",
        "around",
        "launch.warm_up:wait_and_warm_up",
        ("server_args", "execute_warmup_func"),
        process=Process.HTTP,
    ),
    Hook(SRT + "managers.scheduler.Scheduler.get_init_info", "after", "launch.handshake:report", ("self",)),
    Hook(
        SRT + "managers.data_parallel_controller.DataParallelController.get_init_info",
        "after",
        "launch.handshake:pass_on",
        ("self",),
    ),
)

NEEDS = (
    Need(SRT + "arg_groups.serving_hook.ssl_verify_of", ("cfg",)),
    Need(SRT + "runtime_context.get_serving"),
    Need(SRT + "managers.io_struct.BaseReq", fields=("rid",)),
    Need(SRT + "runtime_context.SpawnRanks", fields=("dp_rank",)),
)
