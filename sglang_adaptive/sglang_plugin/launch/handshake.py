"""Each scheduler reports in SGLang's start-up handshake that its hooks are applied; the launcher checks it."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin.hooking import registry
from sglang_adaptive.sglang_plugin.hooking.contract import ContractError
from sglang_adaptive.sglang_plugin.hooking.hook import Process
from sglang_adaptive.sglang_plugin.scheduler import further_captures
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of

KEY = "sglang_adaptive_hooks"
BUILT = "sglang_adaptive_built"
"""Runtime states built at start-up (``CapturedSteps.as_pairs``), for the launcher's check of new configurations."""


def report(info: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """After Scheduler.get_init_info, which ends start-up: report that every hook of this process is applied."""
    registry.require(registry.problems_of_scheduler())
    wanted = registry.of_scheduler()
    registry.require_landed((*registry.hooks(Process.EVERY), *wanted))
    further_captures.thaw()
    controller = controller_of(scheduler.draft_worker)
    built = {} if controller is None else {BUILT: controller.built.as_pairs()}
    return {**info, KEY: len(wanted), **built}


def pass_on(info: dict[str, Any], controller: Any) -> dict[str, Any]:
    """After DataParallelController.get_init_info, which makes a new dict: copy the report of its schedulers."""
    replicas = controller._scheduler_init_infos
    if replicas and all(KEY in replica for replica in replicas):
        return {**info, **{key: replicas[0][key] for key in (KEY, BUILT) if key in replicas[0]}}
    return info


def require_in_schedulers(infos: list[dict[str, Any]], *args: Any, **kwargs: Any) -> None:
    """After the launcher's wait for its schedulers: raise ContractError unless each reported its hooks.

    Hooked only when adaptive speculation is requested.
    """
    missing = sum(KEY not in info for info in infos)
    if missing:
        raise ContractError(
            f"{missing} of {len(infos)} schedulers started without sglang-adaptive's hooks: "
            "is the package installed in their environment, and does SGLANG_PLUGINS leave it out?"
        )
