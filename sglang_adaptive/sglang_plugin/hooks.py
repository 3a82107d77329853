"""Declares hooks on SGLang's functions and installs them through SGLang's registry.

A hook is a small function in ``seams/`` that wraps or replaces one function of SGLang:

    @around(WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state", "speculative_num_steps")
    def build_state(original, worker, *args, **kwargs): ...

The decorator names SGLang's function and the parameters that the hook relies on. `to_stages` declares a hook at which
the stages of the process's `Round` act, in their order. Where speculation is static there is no round, and only
SGLang's function runs. Each function of SGLang has at most one hook, so the registration order does not matter.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, TypeVar

from sglang_adaptive.sglang_plugin import bodies
from sglang_adaptive.sglang_plugin.contract import RELEASES, ContractError, Need, verdict
from sglang_adaptive.sglang_plugin.current import current
from sglang_adaptive.sglang_plugin.importers import Importers

logger = logging.getLogger(__name__)

SRT = "sglang.srt."
WORKER = SRT + "speculative.eagle_worker_v2."
EXECUTOR = SRT + "model_executor."
FA3 = SRT + "layers.attention.flashattention_backend."

SEAMS = (
    *("arguments", "launcher", "http", "reporting", "worker", "scheduling", "graphs", "attention"),
    *("memory", "state"),
)
"""Modules of ``seams/``; each is one area of SGLang."""

F = TypeVar("F", bound=Callable[..., Any])


class Process(Enum):
    """The processes that install a hook; each value is the heading of their table in docs/hooks.md."""

    ENTRY = "Every process, from the start"
    LAUNCHER = "Launcher, once the server is asked to be adaptive"
    HTTP = "The same, or each HTTP worker of `--tokenizer-worker-num`"
    EVERY = "Launcher and every child of an adaptive server"
    SCHEDULER = "Scheduler of an adaptive server"
    SCHEDULER_CUDA = "The same with a CUDA device"
    SCHEDULER_PLAN_STREAM = "The same with SGLang's plan stream on"


Processes = Process | tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of this package that wraps or replaces one of SGLang's."""

    target: str
    """SGLang's function, as a dotted path."""

    kind: str
    """"around" or "replace": a value of SGLang's HookType."""

    function: Callable[..., Any]
    parameters: tuple[str, ...]
    """The parameters of SGLang's function that ours relies on."""

    processes: tuple[Process, ...]
    """The processes that install it."""

    @property
    def need(self) -> Need:
        """The need of this hook: its target with its parameters."""
        return Need(self.target, self.parameters, on_cuda=self.processes == (Process.SCHEDULER_CUDA,))


_hooks: list[Hook] = []
_needs: list[Need] = []
"""Filled by the modules of ``seams/`` on import."""


def _declare(kind: str, target: str, parameters: tuple[str, ...], process: Processes) -> Callable[[F], F]:
    processes = process if isinstance(process, tuple) else (process,)

    def declare(function: F) -> F:
        assert all(hook.target != target for hook in _hooks), f"{target} has a hook already"
        _hooks.append(Hook(target, kind, function, parameters, processes))
        return function

    return declare


def around(target: str, *parameters: str, process: Processes = Process.SCHEDULER) -> Callable[[F], F]:
    """Declare a function that gets *target* and its arguments and returns the result."""
    return _declare("around", target, parameters, process)


def replace(target: str, *parameters: str, process: Processes = Process.SCHEDULER) -> Callable[[F], F]:
    """Declare a function or class that runs instead of *target*."""
    return _declare("replace", target, parameters, process)


def to_stages(of: Callable[..., Any], target: str, *parameters: str, process: Processes = Process.SCHEDULER) -> None:
    """Declare that the stages of the `Round` act at *target* with *of*, a method of `Stage`."""

    @functools.wraps(of)
    def raised(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = current()
        return original(*args, **kwargs) if now is None else now.at[of](original, *args, **kwargs)

    _declare("around", target, parameters, process)(raised)


def needs(*found: Need) -> None:
    """Declare what a seam uses of SGLang besides the functions that it hooks."""
    _needs.extend(found)


def hooks(*processes: Process) -> tuple[Hook, ...]:
    """Return the hooks that any of *processes* installs, in order of declaration."""
    _import_seams()
    return tuple(hook for hook in _hooks if not set(processes).isdisjoint(hook.processes))


def of_launcher() -> tuple[Hook, ...]:
    """Return the hooks of the launcher of an adaptive server."""
    return hooks(Process.EVERY, Process.LAUNCHER, Process.HTTP)


def of_scheduler() -> tuple[Hook, ...]:
    """Return the hooks of this scheduler process, depending on its device and environment."""
    from sglang.srt.environ import envs
    from sglang.srt.utils import is_cuda

    processes = [Process.SCHEDULER]
    if is_cuda():
        processes.append(Process.SCHEDULER_CUDA)
    if envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get():
        processes.append(Process.SCHEDULER_PLAN_STREAM)
    return hooks(*processes)


def all_needs(on_cuda: bool) -> tuple[Need, ...]:
    """Return what is needed of SGLang: what can be imported only with a CUDA device, or everything else."""
    _import_seams()
    found = (*(hook.need for hook in _hooks), *_needs)
    return tuple(need for need in found if need.on_cuda is on_cuda)


def problems(on_cuda: bool = False) -> list[str]:
    """Return every mismatch between the needs and the installed SGLang, one phrase each."""
    found = (need.problem() for need in all_needs(on_cuda))
    return list(dict.fromkeys(problem for problem in found if problem is not None))


def targets() -> list[str]:
    """Return every hooked function of SGLang."""
    _import_seams()
    return [hook.target for hook in _hooks]


def changed() -> list[str]:
    """Return the hooked functions whose body in the installed SGLang matches no supported release."""
    return bodies.changed(targets())


def require(found: Iterable[str]) -> None:
    """Raise ContractError, in one line, if any problem was *found*."""
    if described := "; ".join(found):
        import sglang

        raise ContractError(f"sglang {verdict(sglang.__version__, [described], ())}")


def warn_when_untested() -> None:
    """Log how the installed SGLang fits, if it is not a supported release."""
    import sglang

    if sglang.__version__ not in RELEASES:
        logger.warning("adaptive: sglang %s", verdict(sglang.__version__, (), changed()))


def install(wanted: Iterable[Hook]) -> None:
    """Register hooks with SGLang, which applies them once every plugin has registered its own."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in wanted:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))


def place_at_once() -> Importers:
    """Let SGLang's registry use an index of all modules to find who imported the functions that it hooks next.

    Returns the index, which may already exist.
    """
    from sglang.srt.plugins import hook_registry

    if not isinstance(hook_registry._propagate_patch, Importers):
        hook_registry._propagate_patch = Importers()
    return hook_registry._propagate_patch


def install_now(wanted: Iterable[Hook]) -> None:
    """Register hooks and apply them now, once per process; used after SGLang has applied the plugins' hooks.

    Raises ContractError when one is not applied.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    wanted = tuple(wanted)
    install(hook for hook in wanted if not _is_registered(hook))
    place_at_once()
    HookRegistry.apply_hooks()
    require_installed(wanted)


def require_installed(wanted: Iterable[Hook]) -> None:
    """Raise ContractError unless every hook is applied in this process; free the index of importers."""
    from sglang.srt.plugins import hook_registry
    from sglang.srt.plugins.hook_registry import HookRegistry

    if isinstance(hook_registry._propagate_patch, Importers):
        hook_registry._propagate_patch.forget()
    lost = [hook.target for hook in wanted if not (hook.target in HookRegistry._patched and _is_registered(hook))]
    if lost:
        raise ContractError(f"these hooks were not installed: {', '.join(lost)}; see the log above")


def _is_registered(hook: Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return any(function is hook.function for _, function, _ in HookRegistry._hooks.get(hook.target, ()))


def _import_seams() -> None:
    for name in SEAMS:
        import_module(f"sglang_adaptive.sglang_plugin.seams.{name}")


needs(
    Need(SRT + "plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type")),
    Need(SRT + "plugins.hook_registry.HookRegistry.apply_hooks"),
    Need(SRT + "plugins.hook_registry.HookRegistry._patched"),
    Need(SRT + "plugins.hook_registry.HookRegistry._hooks"),
    Need(SRT + "plugins.hook_registry._propagate_patch", ("original", "wrapped", "source_module")),
)
