"""SGLang's HTTP server: the operator's requests, and the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs


@around(
    SRT + "entrypoints.http_server._setup_and_run_http_server",
    *("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos"),
    process=Process.LAUNCHER,
)
def set_up(
    original: Callable[..., None], server_args: Any, tokenizer_manager: Any, template_manager: Any, port_args: Any,
    scheduler_infos: list[dict[str, Any]], *args: Any, **kwargs: Any,
) -> None:  # fmt: skip
    """Set up the HTTP application and serve it."""
    from sglang_adaptive.sglang_plugin.admin import route
    from sglang_adaptive.sglang_plugin.page import routes

    route.install(server_args, scheduler_infos)
    routes.install()
    original(server_args, tokenizer_manager, template_manager, port_args, scheduler_infos, *args, **kwargs)


@around(SRT + "utils.auth.add_api_key_middleware", "app", "api_key", "admin_api_key", process=Process.HTTP)
def check_keys(original: Callable[..., None], app: Any, *args: Any, **kwargs: Any) -> None:
    """Check the API key of each request, and let the page ask for the key."""
    from sglang_adaptive.sglang_plugin.page import routes

    original(app, *args, **kwargs)
    routes.prompt_for_key(app)


@around(
    SRT + "managers.multi_tokenizer_mixin.write_data_for_multi_tokenizer",
    *("port_args", "server_args", "scheduler_info"),
    process=Process.LAUNCHER,
)
def write_for_tokenizer_workers(
    original: Callable[..., Any], port_args: Any, server_args: Any, *args: Any, **kwargs: Any
) -> Any:
    """Write what HTTP workers read; they load no plugins, so the maximum is the launch draft tokens."""
    from sglang_adaptive.sglang_plugin.stages import capacity

    return capacity.write_for_tokenizer_workers(original, port_args, server_args, *args, **kwargs)


needs(
    """
    managers.io_struct.SetInternalStateReq: server_args
    managers.io_struct.GetInternalStateReq
    managers.io_struct.GenerateReqInput: rid input_ids sampling_params routed_dp_rank log_metrics no_logs extra_key
        return_logprob logprob_start_len top_logprobs_num stream return_prompt_token_ids
    managers.tokenizer_manager.TokenizerManager.generate_request: self obj
    managers.tokenizer_manager.TokenizerManager.set_internal_state: self obj
    managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop: self
    managers.tokenizer_manager.TokenizerManager: event_loop gracefully_exit
    entrypoints.http_server.app
    managers.multi_tokenizer_mixin.get_main_process_id
    managers.multi_tokenizer_mixin.read_from_shared_memory: name
    entrypoints.http_server.get_global_state
    utils.auth.auth_level: level
    utils.auth.AuthLevel.ADMIN_OPTIONAL
    """
)
needs("environ.envs.SGLANG_HTTP_SERVER_APP_PATH", since="0.5.23")
