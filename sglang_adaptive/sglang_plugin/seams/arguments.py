"""SGLang's arguments: whether they request adaptive speculation, and what that changes in them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs


@around(SRT + "server_args.ServerArgs.from_cli_args", "args", process=Process.ENTRY)
def from_command_line(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    """Reject an invalid configuration with a one-line error, before anything loads."""
    from sglang_adaptive.sglang_plugin.configuration import pass_on
    from sglang_adaptive.sglang_plugin.launch import activation

    activation.check_command_line(args)
    made = original(cls, args)
    pass_on(args, made)
    return made


@around(SRT + "server_args.ServerArgs.resolve_once", "self", process=Process.ENTRY)
def resolve(original: Callable[..., None], server_args: Any) -> None:
    """Turn adaptive speculation on if it can run; otherwise log why not."""
    from sglang_adaptive.sglang_plugin.launch import activation

    activation.resolve_once(original, server_args)


@around(SRT + "speculative.adaptive_spec_params.adaptive_unsupported_reason", "server_args", process=Process.LAUNCHER)
def why_static(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Return why a setup cannot adapt, SGLang's reason or ours, and keep it for /server_info."""
    from sglang_adaptive.sglang_plugin.launch import activation

    return activation.note_reason(original, server_args)


@around(SRT + "arg_groups.speculative_hook._handle_ngram", "server_args", process=Process.LAUNCHER)
def resolve_ngram(original: Callable[..., None], server_args: Any) -> None:
    """Resolve NGRAM's arguments."""
    from sglang_adaptive.sglang_plugin.workers.choice import steps_by_breadth

    original(server_args)
    steps_by_breadth(server_args)


@around(SRT + "arg_groups.speculative_hook._init_adaptive_speculative_params", "server_args", process=Process.LAUNCHER)
def resolve_launch_steps(original: Callable[..., None], server_args: Any) -> None:
    """Resolve the steps that an adaptive server starts with; DFLASH starts with its block size."""
    from sglang_adaptive.sglang_plugin.setup import drafts_blocks

    if not drafts_blocks(server_args):
        original(server_args)


@around(SRT + "arg_groups.speculative_hook._handle_dflash", "server_args", process=Process.LAUNCHER)
def resolve_dflash(original: Callable[..., None], server_args: Any) -> None:
    """Resolve DFLASH's arguments."""
    from sglang_adaptive.sglang_plugin.workers.choice import launch_block_is_widest

    original(server_args)
    launch_block_is_widest(server_args)


needs(
    """
    arg_groups.overrides.resolving_view: server_args
    runtime_context.SpawnRanks: dp_rank
    """
)
