"""Collects the hooks of all rooms, registers them with SGLang, and checks that they are applied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.contract import SUPPORTED, ContractError
from sglang_adaptive.sglang_plugin.hooking.hook import Hook, Need, Process

ROOMS = (
    *("launch", "scheduler", "workers", "attention_dp", "zero_steps", "verify_budget", "fast_path", "repairs"),
    *("reporting", "admin", "page"),
)
"""Rooms with hooks. Where two rooms wrap one function, the later room's wrapper is the outer one."""


def hooks(*processes: Process) -> tuple[Hook, ...]:
    """Return the hooks of *processes*, process by process, in the order of the rooms."""
    every = [hook for room in ROOMS for hook in getattr(_room(room), "HOOKS", ())]
    return tuple(hook for process in processes for hook in every if hook.process is process)


def needs(on_cuda: bool) -> Iterator[Need]:
    """Yield the needs of the rooms: those that can be imported only with a CUDA device, or all others."""
    for room in (*ROOMS, "hooking.needs"):
        hooked = (hook.need() for hook in getattr(_room(room), "HOOKS", ()))
        yield from (need for need in (*hooked, *getattr(_room(room), "NEEDS", ())) if need.on_cuda is on_cuda)


def of_launcher() -> tuple[Hook, ...]:
    """Return the hooks of the launcher of an adaptive server."""
    return hooks(Process.EVERY, Process.LAUNCHER, Process.HTTP)


def of_scheduler() -> tuple[Hook, ...]:
    """Return the hooks of this process, a scheduler, by its device and its environment."""
    from sglang.srt.environ import envs
    from sglang.srt.utils import is_cuda

    processes = [Process.SCHEDULER]
    if is_cuda():
        processes.append(Process.SCHEDULER_CUDA)
    if envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get():
        processes.append(Process.SCHEDULER_PLAN_STREAM)
    if "SGLANG_ADAPTIVE_VERIFY_BUDGET" in os.environ:
        processes.append(Process.SCHEDULER_VERIFY_BUDGET)
        if is_cuda():
            processes.append(Process.SCHEDULER_CUDA_VERIFY_BUDGET)
    return hooks(*processes)


def problems(on_cuda: bool = False) -> list[str]:
    """Return every mismatch between the needs of the rooms and the installed SGLang, one phrase each."""
    found = (need.problem() for need in needs(on_cuda))
    return list(dict.fromkeys(problem for problem in found if problem is not None))


def problems_of_scheduler() -> list[str]:
    """Return the mismatches of needs that only a scheduler with a CUDA device has."""
    from sglang.srt.utils import is_cuda

    return problems(on_cuda=True) if is_cuda() else []


def require(found: Iterable[str]) -> None:
    """Raise ContractError, in one line, if any problem was *found*."""
    if described := "; ".join(found):
        import sglang

        raise ContractError(
            f"sglang-adaptive supports {SUPPORTED}, and this is sglang {sglang.__version__}: {described}"
        )


def add(wanted: Iterable[Hook]) -> None:
    """Register hooks with SGLang, which applies them once every plugin has registered its own.

    SGLang warns of several AROUND hooks on one function, because they may not know of each other. So it gets one hook
    for each function, composed of all that are *wanted* on it.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    by_target: dict[str, list[Hook]] = {}
    for hook in wanted:
        by_target.setdefault(hook.target, []).append(hook)
    for target, hooks in by_target.items():
        if len(hooks) == 1:
            HookRegistry.register(target, hooks[0].load(), HookType(hooks[0].kind))
        else:
            HookRegistry.register(target, _composed(hooks), HookType.AROUND)


def add_and_apply(wanted: Iterable[Hook]) -> None:
    """Register hooks and apply them now, once a process; used after SGLang has applied the plugins' hooks.

    Raises ContractError when one is not applied.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    wanted = tuple(wanted)
    add(hook for hook in wanted if hook.load() not in _registered(hook.target))
    HookRegistry.apply_hooks()
    require_landed(wanted)


def require_landed(wanted: Iterable[Hook]) -> None:
    """Raise ContractError unless every hook is applied in this process."""
    lost = [hook.target for hook in wanted if not _landed(hook)]
    if lost:
        raise ContractError(f"these hooks did not land on {SUPPORTED}: {', '.join(lost)}; see the log above")


def _room(name: str) -> Any:
    return import_module(f"sglang_adaptive.sglang_plugin.{name}")


def _composed(hooks: Sequence[Hook]) -> Callable[..., Any]:
    """Return one AROUND hook that does what *hooks* do in SGLang's own way, the last one outermost."""
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    parts = [(hook.load(), HookType(hook.kind)) for hook in hooks]
    chain: Callable[..., Any] | None = None

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal chain
        if chain is None:  # the original is the same at every call
            chain = reduce(lambda inner, part: _wrap_fn(inner, *part), parts, original)
        return chain(*args, **kwargs)

    around.parts = [function for function, _ in parts]  # type: ignore[attr-defined]
    return around


def _registered(target: str) -> list[Any]:
    """Return the functions of this package, and of others, that are registered on *target*."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    found = [function for _, function, _ in HookRegistry._hooks.get(target, ())]
    return [part for function in found for part in getattr(function, "parts", [function])]


def _landed(hook: Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return hook.target in HookRegistry._patched and hook.load() in _registered(hook.target)
