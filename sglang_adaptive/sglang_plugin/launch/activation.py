"""The launcher's checks of whether adaptive speculation is requested and can run."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from sglang_adaptive.policy.config import AdaptiveConfig, require_texts
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import env, features, hooks, repairs
from sglang_adaptive.sglang_plugin.configuration import pass_on, reading_of, resolving
from sglang_adaptive.sglang_plugin.contract import ContractError
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.setup import drafts_blocks, model_config
from sglang_adaptive.sglang_plugin.stages import attention_dp
from sglang_adaptive.sglang_plugin.workers import choice as workers

logger = logging.getLogger(__name__)


def from_command_line(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    """Return ServerArgs; refuse a bad configuration or an SGLang that does not fit with one line, and exit with 2."""
    check_command_line(args)
    made = original(cls, args)
    pass_on(args, made)
    return made


def check_command_line(args: argparse.Namespace) -> None:
    """Refuse what cannot be served before anything loads."""
    if asked_for(args):
        try:
            _check_beside(args, reading_of(args).config)
            hooks.require(hooks.problems())
        except (ConfigError, ContractError) as error:
            print(f"sglang-adaptive: error: {error}", file=sys.stderr)
            raise SystemExit(2) from None


def resolve_once(original: Callable[..., None], server_args: Any) -> None:
    """Resolve the arguments, and turn adaptive speculation on if it can run; otherwise log why not.

    Raises ConfigError or ContractError; ``check_command_line`` refuses both earlier.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    if getattr(server_args, "_resolution_finished", False):
        return original(server_args)
    if not asked_for(server_args):
        os.environ.pop(env.ACTIVE, None)
        return original(server_args)
    _prepare(server_args)
    with resolving(server_args):
        original(server_args)
    note = getattr(server_args, NOTE)
    if not resolving_view(server_args).speculative_adaptive and note["reason"] is None:
        note["reason"] = "SGLang turned it off while it resolved the arguments; its log says why"


def note_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Return why a setup cannot adapt, SGLang's reason or ours, and keep it for /server_info."""
    reason = unsupported_reason(original, server_args)
    if hasattr(server_args, NOTE):
        getattr(server_args, NOTE)["reason"] = reason
    return reason


def unsupported_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Return why a server with *server_args* cannot adapt: SGLang's reason, or the model's; None where it can.

    Raises ConfigError.
    """
    reason = workers.unsupported_reason(lambda args: attention_dp.unsupported_reason(original, args), server_args)
    reason = reason or repairs.hybrid_obstacle(server_args)
    if reason is None:
        # SGLang has the model's configuration by now, also if the command line named it before it was downloaded.
        _check_rings(server_args, reading_of(server_args).config)
    return reason


def asked_for(args: Any) -> bool:
    """Return whether the command line, or ServerArgs, requests adaptive speculation."""
    return bool(args.speculative_adaptive) or args.speculative_adaptive_config is not None


def _prepare(server_args: Any) -> None:
    config = reading_of(server_args).config
    _check_beside(server_args, config)
    hooks.require(hooks.problems())
    hooks.warn_when_untested()
    hooks.install_now(hooks.of_launcher())
    os.environ[env.ACTIVE] = "1"
    note = getattr(server_args, NOTE)
    note["reason"] = reason = cannot_adapt(server_args)
    if reason is not None:
        logger.warning("adaptive speculation is off; the server runs without it: %s", reason)
        server_args.speculative_adaptive = False
        if server_args.disaggregation_mode == "prefill":
            _draft_as_the_decode_server(server_args, config)
        return
    # A configuration file is enough to request adaptive speculation. Set on the raw input, because one of SGLang's
    # checks reads it before the resolution step that handles speculation.
    server_args.speculative_adaptive = True
    if runs_on_cpu(server_args) and not server_args.disable_cuda_graph:
        # SGLang 0.5.23 chooses the CUDA graph runner for runtime states on every device, and fails without CUDA.
        logger.warning("adaptive speculation on CPU runs without graphs: taking --disable-cuda-graph as given")
        server_args.disable_cuda_graph = True


def _draft_as_the_decode_server(server_args: Any, config: AdaptiveConfig) -> None:
    """Set a prefill server's steps and topk to those of an adaptive decode server with the same arguments.

    It hands over topk drafts per request, and SGLang's default without adaptive speculation is a tree.
    """
    chain = server_args.speculative_eagle_topk in (None, 1)
    if server_args.speculative_num_steps is None and chain and not drafts_blocks(server_args):
        steps = config.launch_steps
        server_args.speculative_num_steps = steps
        server_args.speculative_eagle_topk, server_args.speculative_num_draft_tokens = 1, steps + 1


def cannot_adapt(server_args: Any) -> str | None:
    """Return why adaptive speculation cannot run, in the cases where SGLang would exit or log nothing; else None."""
    from sglang.srt.environ import envs

    if server_args.speculative_algorithm is None:
        return "no --speculative-algorithm is given"
    if server_args.disaggregation_mode == "prefill":
        return "a prefill server drafts nothing: give the decode server the configuration"
    if server_args.use_ray:
        return "Ray's scheduler actors load no SGLang plugins"
    if server_args.enable_hisparse:
        return "--enable-hisparse keeps swap state of one fixed width"
    if server_args.kv_canary != "none":
        return "--kv-canary only has plans for the drafts of the launch steps"
    if server_args.enable_lora or server_args.lora_paths:
        return "LoRA's graph metadata is built for one depth"
    if envs.SGLANG_ENABLE_PP_SPEC.get() and (server_args.pp_size or 1) > 1:
        return "SGLANG_ENABLE_PP_SPEC relays verify results of one fixed width between pipeline stages"
    return None


def adapts(server_args: Any) -> bool:
    """Return whether the launcher has found that *server_args* can adapt."""
    return getattr(server_args, NOTE, {}).get("reason", "static") is None


def runs_on_cpu(server_args: Any) -> bool:
    """Whether the server's device is, or will be, the CPU."""
    if server_args.device is not None:
        return str(server_args.device).startswith("cpu")
    from sglang.srt.utils import is_cpu

    return bool(is_cpu())


def _check_beside(args: Any, config: AdaptiveConfig) -> None:
    """Raise ConfigError if *config* conflicts with *args*, or if ``SGLANG_ADAPTIVE_OFF`` has an unknown name."""
    features.turned_off()
    algorithm = (args.speculative_algorithm or "").upper()
    if config.options.lookup is True and algorithm in workers.WITHOUT_LOOKUPS:
        expected = f"false with --speculative-algorithm {algorithm}"
        raise ConfigError(args.speculative_adaptive_config, f"{config.options.policy}.lookup", "got true", expected)
    require_texts(config.options, as_text=not args.skip_tokenizer_init)
    steps = args.speculative_num_steps
    if steps is not None and steps not in config.candidate_steps and not drafts_blocks(args):
        accepted = ", ".join(map(str, config.candidate_steps))
        raise ConfigError("command line", "--speculative-num-steps", f"got {steps}", f"a candidate step: {accepted}")
    _check_rings(args, config)


def _check_rings(args: Any, config: AdaptiveConfig) -> None:
    """Raise ConfigError if *config* has rounds whose drafts the model's rings cannot hold."""
    most = None if drafts_blocks(args) else repairs.most_steps(model_config(args.model_path))
    if most is None or max(config.drafts if config.options.lookup is True else config.candidate_steps) <= most:
        return
    deepest, name = max(config.candidate_steps), config.options.policy
    key, got = ("candidate_steps", str(deepest)) if deepest > most else (f"{name}.lookup", "true")
    expected = f"{most} at most" if deepest > most else "false"
    raise ConfigError(config.source, key, f"got {got}", f"{expected}: DeepSeek-V4's rings hold {most + 1} draft tokens")
