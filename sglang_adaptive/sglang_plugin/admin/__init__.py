"""The operator's interface: /server_info, /set_internal_state, and changes of the configuration while serving.

May import every room but page.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, STATE, Hook, Need, Process

HOOKS = (
    Hook(
        SRT + "entrypoints.http_server._setup_and_run_http_server",
        "before",
        "admin.route:install",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos"),
        process=Process.LAUNCHER,
    ),
    Hook(STATE + "_add_speculative", "after", "admin.server_info:add_adaptive", ("self", "state")),
    Hook(STATE + "get_internal_state", "around", "admin.server_info:answer_look", ("self", "recv_req")),
    Hook(STATE + "set_internal_state", "before", "admin.reconfigure:unpack", ("self", "recv_req")),
    Hook(STATE + "_update_handlers", "after", "admin.server_info:add_update_handlers", ("self",)),
)

NEEDS = (
    Need(SRT + "managers.io_struct.SetInternalStateReq", fields=("server_args",)),
    Need(SRT + "managers.tokenizer_manager.TokenizerManager.set_internal_state", ("self", "obj")),
    Need(SRT + "entrypoints.http_server.app"),
    Need(SRT + "environ.envs.SGLANG_HTTP_SERVER_APP_PATH"),
    Need(SRT + "managers.multi_tokenizer_mixin.get_main_process_id"),
    Need(SRT + "managers.multi_tokenizer_mixin.read_from_shared_memory", ("name",)),
    Need(SRT + "utils.auth.add_api_key_middleware", ("app", "api_key", "admin_api_key")),
    Need(SRT + "managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop", ("self",)),
    Need(SRT + "managers.io_struct.GetInternalStateReq"),
    Need(SRT + "managers.io_struct.GetInternalStateReqOutput", fields=("internal_state",)),
)
