"""SGLang's launcher: its arguments, how it starts schedulers and becomes ready, and its HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs, require_in_schedulers
from sglang_adaptive.sglang_plugin.launch import activation
from sglang_adaptive.sglang_plugin.stages import capacity
from sglang_adaptive.sglang_plugin.workers import choice

# -- its arguments -------------------------------------------------------------------------------------------------


around(SRT + "server_args.ServerArgs.from_cli_args", "args", process=Process.ENTRY)(activation.from_command_line)
around(SRT + "server_args.ServerArgs.resolve_once", "self", process=Process.ENTRY)(activation.resolve_once)
for _checked, _check in (
    ("speculative.adaptive_spec_params.adaptive_unsupported_reason", activation.note_reason),
    ("arg_groups.speculative_hook._init_adaptive_speculative_params", choice.launch_steps),
    ("arg_groups.speculative_hook._handle_ngram", choice.steps_by_breadth),
    ("arg_groups.speculative_hook._handle_dflash", choice.launch_block_is_widest),
):
    around(SRT + _checked, "server_args", process=Process.LAUNCHER)(_check)


# -- its start -----------------------------------------------------------------------------------------------------


@around(SRT + "entrypoints.engine.Engine._launch_scheduler_processes", "server_args", process=Process.LAUNCHER)
def launch_schedulers(original: Callable[..., Any], cls: type, server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Start the schedulers and, in parallel, compile the kernels that they will need."""
    from sglang_adaptive.sglang_plugin.launch import compile_ahead

    compile_ahead.begin(server_args)
    return original(cls, server_args, *args, **kwargs)


@around(SRT + "entrypoints.engine._wait_for_scheduler_ready", process=Process.LAUNCHER)
def wait_for_schedulers(original: Callable[..., list[dict[str, Any]]], *args: Any, **kwargs: Any) -> Any:
    """Wait until the schedulers are ready, and check that each has its hooks."""
    infos = original(*args, **kwargs)
    require_in_schedulers(infos)
    return infos


@around(SRT + "entrypoints.http_server._wait_and_warmup", "server_args execute_warmup_func", process=Process.HTTP)
def warm_up(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Send our warm-up requests, then the SGLang request that makes the server ready."""
    from sglang_adaptive.sglang_plugin.launch.warm_up import wait_and_warm_up

    wait_and_warm_up(original, *args, **kwargs)


# -- its HTTP server -----------------------------------------------------------------------------------------------


@around(
    SRT + "entrypoints.http_server._setup_and_run_http_server",
    "server_args tokenizer_manager template_manager port_args scheduler_infos",
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


@around(SRT + "utils.auth.add_api_key_middleware", "app api_key admin_api_key", process=Process.HTTP)
def check_keys(original: Callable[..., None], app: Any, *args: Any, **kwargs: Any) -> None:
    """Check the API key of each request, and let the page ask for the key."""
    from sglang_adaptive.sglang_plugin.page import routes

    original(app, *args, **kwargs)
    routes.prompt_for_key(app)


around(
    SRT + "managers.multi_tokenizer_mixin.write_data_for_multi_tokenizer",
    "port_args server_args scheduler_info",
    process=Process.LAUNCHER,
)(capacity.write_for_tokenizer_workers)


needs(
    """
    arg_groups.overrides.resolving_view: server_args
    runtime_context.SpawnRanks: dp_rank
    arg_groups.serving_hook.ssl_verify_of: cfg
    runtime_context.get_serving
    managers.io_struct.BaseReq: rid
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
