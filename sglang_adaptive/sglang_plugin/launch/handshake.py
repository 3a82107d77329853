"""Each scheduler reports in SGLang's start-up handshake that its hooks are applied; the launcher checks it."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.contract import ContractError
from sglang_adaptive.sglang_plugin.current import current
from sglang_adaptive.sglang_plugin.graphs.captures import thaw
from sglang_adaptive.sglang_plugin.hooks import Process

KEY = "sglang_adaptive_hooks"
BUILT = "sglang_adaptive_built"
"""Runtime states built at start-up (``CapturedSteps.as_pairs``), for the launcher's check of new configurations."""


def report(info: dict[str, Any]) -> dict[str, Any]:
    """Return the *info* that ends a scheduler's start-up, with how many hooks it has. Raises ContractError."""
    from sglang.srt.utils import is_cuda

    hooks.require(hooks.problems(on_cuda=True) if is_cuda() else [])
    wanted = hooks.of_scheduler()
    hooks.require_installed((*hooks.hooks(Process.EVERY), *wanted))
    thaw()
    now = current()
    built = {} if now is None else {BUILT: now.controller.built.as_pairs()}
    return {**info, KEY: len(wanted), **built}


def pass_on(info: dict[str, Any], controller: Any) -> dict[str, Any]:
    """Return the *info* of a controller of replicas, with the report of its schedulers."""
    replicas = controller._scheduler_init_infos
    if replicas and all(KEY in replica for replica in replicas):
        return {**info, **{key: replicas[0][key] for key in (KEY, BUILT) if key in replicas[0]}}
    return info


def require_in_schedulers(infos: list[dict[str, Any]]) -> None:
    """Raise ContractError unless each scheduler has reported its hooks."""
    missing = sum(KEY not in info for info in infos)
    if missing:
        raise ContractError(
            f"{missing} of {len(infos)} schedulers started without sglang-adaptive's hooks: "
            "is the package installed in their environment, and does SGLANG_PLUGINS leave it out?"
        )
