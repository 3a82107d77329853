"""Checks without a GPU whether a launch line can adapt, from its arguments and its models' configurations.

SGLang resolves a line only on a machine with its device. Some steps of the resolution need none: the flags of data
parallelism, the worker for the architecture, and the algorithm for the draft. This module runs them in SGLang's order,
and then SGLang's own check.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin.launch import activation
from sglang_adaptive.sglang_plugin.setup import model_config


def reason(server_args: Any) -> str | None:
    """Return why *server_args*, parsed and not resolved, would not adapt; None where no reason is known.

    Changes *server_args* as SGLang's resolution would: do not launch with it afterwards.
    """
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    own = activation.cannot_adapt(server_args)
    if own is not None:
        return own
    settle(server_args)
    try:
        return activation.unsupported_reason(adaptive_unsupported_reason, server_args)
    except OSError:  # the model is not on this machine, so its configuration is checked at launch
        return None


def settle(server_args: Any) -> None:
    """Run the steps of SGLang's resolution on *server_args* that decide how a line speculates."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.arg_groups.parallel_hook import handle_deprecated_dp_attention

    handle_deprecated_dp_attention(server_args)
    _settle_multi_layer(server_args)
    cfg = resolving_view(server_args)
    algorithm = _algorithm(cfg.speculative_algorithm.upper(), cfg.speculative_draft_model_path)
    declare_resolution(server_args, __name__, speculative_algorithm=algorithm)


def _algorithm(named: str, draft: str | None) -> str:
    """Return SGLang's algorithm for the *named* one; a Gemma 4 draft has its own."""
    from sglang.srt.arg_groups.speculative_hook import _resolve_speculative_algorithm_alias

    if model_config(draft):
        try:
            return str(_resolve_speculative_algorithm_alias(named, draft))
        except Exception:  # a configuration with its own code, which does not run here
            pass
    return str(_resolve_speculative_algorithm_alias(named, None))


def _settle_multi_layer(server_args: Any) -> None:
    """Apply SGLang's override of the target's architecture for drafts of several layers."""
    from sglang.srt.arg_groups.overrides import collect_model_override_declarations, declare_resolution
    from transformers import PretrainedConfig

    target = model_config(server_args.model_path)
    for architecture in target.get("architectures") or ():
        try:
            found = collect_model_override_declarations(architecture, server_args, PretrainedConfig(**target))
        except Exception:  # an override that reads the device or more of the model applies at launch only
            continue
        for source, fields in found:
            if "enable_multi_layer_eagle" in fields:
                many = fields["enable_multi_layer_eagle"]
                declare_resolution(server_args, source, enable_multi_layer_eagle=many)
