"""SGLang's launcher: how it starts schedulers and becomes ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs


@around(SRT + "entrypoints.engine.Engine._launch_scheduler_processes", "server_args", process=Process.LAUNCHER)
def launch_schedulers(original: Callable[..., Any], cls: type, server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Start the schedulers and, in parallel, compile the kernels that they will need."""
    from sglang_adaptive.sglang_plugin.launch import compile_ahead

    compile_ahead.begin(server_args)
    return original(cls, server_args, *args, **kwargs)


@around(SRT + "entrypoints.engine._wait_for_scheduler_ready", process=Process.LAUNCHER)
def wait_for_schedulers(original: Callable[..., list[dict[str, Any]]], *args: Any, **kwargs: Any) -> Any:
    """Wait until the schedulers are ready, and check that each has its hooks."""
    from sglang_adaptive.sglang_plugin.start.handshake import require_in_schedulers

    infos = original(*args, **kwargs)
    require_in_schedulers(infos)
    return infos


@around(SRT + "entrypoints.http_server._wait_and_warmup", "server_args", "execute_warmup_func", process=Process.HTTP)
def warm_up(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Send our warm-up requests, then the SGLang request that makes the server ready."""
    from sglang_adaptive.sglang_plugin.launch.warm_up import wait_and_warm_up

    wait_and_warm_up(original, *args, **kwargs)


needs(
    """
    arg_groups.serving_hook.ssl_verify_of: cfg
    runtime_context.get_serving
    managers.io_struct.BaseReq: rid
    """
)
