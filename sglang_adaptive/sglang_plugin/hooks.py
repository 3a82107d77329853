"""Declares hooks on SGLang's functions and installs them through SGLang's registry.

A hook is a small function in ``seams/`` that wraps or replaces one function of SGLang:

    @around(SRT + "managers.scheduler.Scheduler.get_init_info", "self")
    def scheduler_ready(original, scheduler): ...

The decorator names SGLang's function and the parameters that the hook relies on, separated by spaces. `to_stages`
declares a hook at which the stages of the process's `Rounds` act, in their order. Where speculation is static there are
none, and only SGLang's function runs. Each function of SGLang has at most one hook, so the registration order does not
matter.
"""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from sglang_adaptive.sglang_plugin import bodies
from sglang_adaptive.sglang_plugin.contract import RELEASES, ContractError, Need, parameters_of, sglang_release, verdict
from sglang_adaptive.sglang_plugin.stage import current

logger = logging.getLogger(__name__)

SRT = "sglang.srt."
WORKER = SRT + "speculative.eagle_worker_v2."
EXECUTOR = SRT + "model_executor."
FA3 = SRT + "layers.attention.flashattention_backend."

SEAMS = ("launcher", "worker", "scheduling", "runner", "attention", "state")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook(Need):
    """A function of this package that wraps or replaces one of SGLang's, which it needs with its parameters."""

    kind: str
    """"around" or "replace": a value of SGLang's HookType."""
    function: Callable[..., Any]
    processes: tuple[Process, ...]
    """The processes that install it."""
    before: int
    """How many arguments the function gets before those of SGLang's."""

    def problem(self) -> str | None:
        """Return the problem with the installed SGLang, or None."""
        return Need.problem(self) or self.misfit(parameters_of(pkgutil.resolve_name(self.target)))

    def misfit(self, theirs: Sequence[str]) -> str | None:
        """Return why our function cannot be called like SGLang's with the parameters *theirs*, in order, or None."""
        if missing := [name for name in self.names if name not in theirs]:
            return f"{self.named} has no {', '.join(missing)}"
        if isinstance(self.function, type):
            return None
        own = list(inspect.signature(self.function).parameters.values())[self.before :]
        kinds = {each.kind for each in own}
        taken = {*self.names, *(each.name for each in own), "self", "cls"}
        others = [name for name in theirs if name not in taken]
        if others and not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            return f"{self.named} also takes {', '.join(others)}, and our function does not"
        places = [theirs.index(name) for name in self.names]
        first = theirs[: len(own) - len(kinds & {inspect.Parameter.VAR_KEYWORD})]
        fixed = inspect.Parameter.VAR_POSITIONAL not in kinds
        if places != sorted(places) or (fixed and not set(first) <= taken):
            return f"{self.named} takes its parameters in another order: {', '.join(theirs)}"
        return None


_hooks: list[Hook] = []
_needs: list[Need] = []
"""Filled by the modules of ``seams/`` on import."""


def _declare(kind: str, target: str, parameters: str, process: Processes, before: int) -> Callable[[F], F]:
    processes = process if isinstance(process, tuple) else (process,)

    def declare(function: F) -> F:
        assert all(hook.target != target for hook in _hooks), f"{target} has a hook already"
        by = f"{_seam()}: {function.__qualname__.rpartition('<locals>.')[2]}"  # of an event: Stage.NAME
        names, on_cuda = tuple(parameters.split()), processes == (Process.SCHEDULER_CUDA,)
        hook = Hook(
            target, names, on_cuda=on_cuda, by=by, kind=kind, function=function, processes=processes, before=before
        )
        _hooks.append(hook)
        return function

    return declare


def around(target: str, parameters: str = "", process: Processes = Process.SCHEDULER) -> Callable[[F], F]:
    """Declare a function that gets *target* and its arguments and returns the result."""
    return _declare("around", target, parameters, process, before=1)


def replace(target: str, parameters: str = "", process: Processes = Process.SCHEDULER) -> Callable[[F], F]:
    """Declare a function or class that runs instead of *target*."""
    return _declare("replace", target, parameters, process, before=0)


def to_stages(
    event: Callable[..., Any], target: str, parameters: str = "", process: Processes = Process.SCHEDULER
) -> None:
    """Declare that the stages act at *target* with *event*, a method of `Stage`."""

    @functools.wraps(event)
    def raised(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        stages = current()
        return (original if stages is None else stages.around(event, original))(*args, **kwargs)

    _declare("around", target, parameters, process, before=2)(raised)


def needs(text: str, **about: Any) -> None:
    """Declare what a seam uses of SGLang besides the functions that it hooks.

    *text* has dotted paths, below `SRT` unless they begin with "sglang", each followed by a function's parameters or a
    class's attributes. *about* are fields that their `Need` has.
    """
    found: list[list[str]] = []
    for word in text.split():
        found.append([word.rstrip(":")]) if "." in word else found[-1].append(word)
    for path, *names in found:
        target = path if path.startswith("sglang.") else SRT + path
        _needs.append(Need(target, tuple(names), by=_seam(), **about))


def _seam() -> str:
    """Return the file that declares something, the first caller outside this module, below ``sglang_plugin/``."""
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == __name__ and frame.f_code.co_name != "<module>":
        assert frame.f_back is not None
        frame = frame.f_back
    name: str = frame.f_globals["__name__"]
    return name.removeprefix("sglang_adaptive.sglang_plugin.").replace(".", "/") + ".py"


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


def problems(on_cuda: bool = False) -> list[str]:
    """Return every mismatch between the needs and the installed SGLang, one phrase each.

    With *on_cuda*, of what can be imported only with a CUDA device; else of all the rest.
    """
    _import_seams()
    found = (each.problem() for each in (*_hooks, *_needs) if each.on_cuda is on_cuda)
    return list(dict.fromkeys(problem for problem in found if problem is not None))


def problems_in_source() -> list[str]:
    """Return the mismatches of hooks that can be imported only with a CUDA device, as SGLang's source shows them."""
    found = []
    for hook in hooks(Process.SCHEDULER_CUDA):
        defined = bodies.definitions(hook.target, bodies.installed())
        lacking = f"{hook.named} is missing (its source does not define it)"
        found.append(hook.misfit(bodies.parameters(defined[0])) if defined else lacking)
    return [problem for problem in found if problem is not None]


def targets() -> list[str]:
    """Return every hooked function of SGLang."""
    return [hook.target for hook in hooks(*Process)]


def changed() -> list[str]:
    """Return the hooked functions whose body in the installed SGLang matches no supported release, and our places."""
    found = bodies.changed(targets())
    return [hook.named for hook in _hooks if hook.target in found]


def require(found: Iterable[str]) -> None:
    """Raise ContractError, in one line, if any problem was *found*."""
    if described := "; ".join(found):
        raise ContractError(f"sglang {verdict(sglang_release(), [described], ())}")


def warn_when_untested() -> None:
    """Log how the installed SGLang fits, if it is not a supported release."""
    if (release := sglang_release()) not in RELEASES:
        logger.warning("adaptive: sglang %s", verdict(release, (), changed()))


def install(wanted: Iterable[Hook]) -> None:
    """Register hooks with SGLang, which applies them once every plugin has registered its own."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in wanted:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))


# An index of where the modules of a process hold functions that are about to be hooked.
#
# ``from X import f`` copies a reference, so for each hook SGLang scans every attribute of every module: 235,000
# attributes of 7,000 modules in a server's process, for each of the 80 hooks of a scheduler. An index needs one pass.


class Importers:
    """Replaces SGLang's `hook_registry._propagate_patch` for hooks that are applied together."""

    def __init__(self) -> None:
        self._places: dict[int, list[tuple[ModuleType, str]]] = {}
        """The modules and names that hold each function and class, by its id."""
        self._seen: dict[str, tuple[ModuleType, int]] = {}
        """The indexed modules, and how many attributes they had."""
        self._shared = False

    def __call__(self, original: object, wrapped: object, source_module: object) -> int:
        """Replace *original* with *wrapped* in all modules but *source_module*; return the number of replacements."""
        self._look()
        if isinstance(source_module, ModuleType):  # another hook may find it there
            self._places.setdefault(id(wrapped), []).extend(
                (source_module, name) for name, value in vars(source_module).items() if value is wrapped
            )
        replaced = 0
        for module, name in self._places.get(id(original), ()):
            if module is not source_module and vars(module).get(name) is original:
                with suppress(AttributeError, TypeError):
                    setattr(module, name, wrapped)
                    self._places.setdefault(id(wrapped), []).append((module, name))
                    replaced += 1
        return replaced

    def share(self) -> None:
        """Index all modules for the forks of this process, which share the index and keep it."""
        self._look()
        self._shared = True

    def forget(self) -> None:
        """Free the index, some 20 MB in a scheduler, unless it is shared; the next hook rebuilds it."""
        if self._shared:
            return
        self._places.clear()
        self._seen.clear()

    def _look(self) -> None:
        """Index modules that are new or have grown since the last look; a hook may import some."""
        if len(sys.modules) == len(self._seen):
            return
        for key, module in list(sys.modules.items()):
            held = vars(module) if isinstance(module, ModuleType) else {}
            if self._seen.get(key) != (module, len(held)):
                self._seen[key] = module, len(held)
                for name, value in list(held.items()):
                    if callable(value):
                        self._places.setdefault(id(value), []).append((module, name))


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
    lost = [hook.named for hook in wanted if not (hook.target in HookRegistry._patched and _is_registered(hook))]
    if lost:
        raise ContractError(f"these hooks were not installed: {', '.join(lost)}; see the log above")


def _is_registered(hook: Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return any(function is hook.function for _, function, _ in HookRegistry._hooks.get(hook.target, ()))


# Each scheduler reports in SGLang's start-up handshake that its hooks are applied, and the launcher checks it.
#
# The report travels with SGLang's start-up times, because a controller of replicas forwards nothing else.


TIMES = "startup_time"
KEY = "sglang_adaptive_hooks"
BUILT = "sglang_adaptive_built"
"""Runtime states built at start-up (``CapturedSteps.as_pairs``), for the launcher's check of new configurations."""


def report_hooks(info: dict[str, Any]) -> dict[str, Any]:
    """Return the *info* that ends a scheduler's start-up, with its number of hooks. Raises ContractError."""
    from sglang.srt.utils import is_cuda

    require(problems(on_cuda=True) if is_cuda() else [])
    wanted = of_scheduler()
    require_installed((*hooks(Process.EVERY), *wanted))
    gc.unfreeze()  # what the captures have frozen
    stages = current()
    built = {} if stages is None else {BUILT: stages.controller.states.captured.as_pairs()}
    return {**info, TIMES: {**(info.get(TIMES) or {}), KEY: len(wanted), **built}}


def pass_reports_on(summary: dict[str, Any], times: Sequence[Any]) -> dict[str, Any]:
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


def _import_seams() -> None:
    for name in SEAMS:
        import_module(f"sglang_adaptive.sglang_plugin.seams.{name}")


needs(
    """
    plugins.hook_registry.HookRegistry.register: target hook hook_type
    plugins.hook_registry.HookRegistry.apply_hooks
    plugins.hook_registry.HookRegistry._patched
    plugins.hook_registry.HookRegistry._hooks
    plugins.hook_registry._propagate_patch: original wrapped source_module
    """
)
