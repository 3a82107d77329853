"""Each scheduler reports in SGLang's start-up handshake that its hooks are applied; the launcher checks it.

The report travels with SGLang's start-up times, because a controller of replicas forwards nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.contract import ContractError
from sglang_adaptive.sglang_plugin.current import current
from sglang_adaptive.sglang_plugin.hooks import Process

TIMES = "startup_time"
KEY = "sglang_adaptive_hooks"
BUILT = "sglang_adaptive_built"
"""Runtime states built at start-up (``CapturedSteps.as_pairs``), for the launcher's check of new configurations."""


def report(info: dict[str, Any]) -> dict[str, Any]:
    """Return the *info* that ends a scheduler's start-up, with its number of hooks. Raises ContractError."""
    from sglang.srt.utils import is_cuda

    hooks.require(hooks.problems(on_cuda=True) if is_cuda() else [])
    wanted = hooks.of_scheduler()
    hooks.require_installed((*hooks.hooks(Process.EVERY), *wanted))
    gc.unfreeze()  # what the captures have frozen
    rounds = current()
    built = {} if rounds is None else {BUILT: rounds.controller.states.captured.as_pairs()}
    return {**info, TIMES: {**(info.get(TIMES) or {}), KEY: len(wanted), **built}}


def pass_on(summary: dict[str, Any], times: Sequence[Any]) -> dict[str, Any]:
    """Return the *summary* of the replicas' start-up *times*, with their schedulers' report."""
    if times and all(of_one and KEY in of_one for of_one in times):
        return {**summary, **{key: times[0][key] for key in (KEY, BUILT) if key in times[0]}}
    return summary


def require_in_schedulers(infos: list[dict[str, Any]]) -> None:
    """Raise ContractError unless each scheduler has reported its hooks; move each report into its info."""
    for info in infos:
        times = info.get(TIMES) or {}
        info.update({key: times.pop(key) for key in (KEY, BUILT) if key in times})
    missing = sum(KEY not in info for info in infos)
    if missing:
        raise ContractError(
            f"{missing} of {len(infos)} schedulers started without sglang-adaptive's hooks: "
            "is the package installed in their environment, and does SGLANG_PLUGINS leave it out?"
        )
