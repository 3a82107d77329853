"""GET /adaptive, a live page about the server's steps, and GET /adaptive.json, its data.

The page computes current figures from differences between two answers. Its charts come from GET /adaptive/history.json:
an hour of rounds that every scheduler keeps (``runtime.history``). All viewers together cause one request to the
scheduler a second.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Hook, Need, Process

HOOKS = (
    Hook(
        SRT + "entrypoints.http_server._setup_and_run_http_server",
        "before",
        "page.routes:install",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos"),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "utils.auth.add_api_key_middleware",
        "after",
        "page.routes:prompt_for_key",
        ("app",),
        process=Process.HTTP,
    ),
)

NEEDS = (
    Need(SRT + "entrypoints.http_server.get_global_state"),
    Need(SRT + "utils.auth.auth_level", ("level",)),
    Need(SRT + "utils.auth.AuthLevel.ADMIN_OPTIONAL"),
)
