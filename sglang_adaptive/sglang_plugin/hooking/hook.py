"""A hook on a function of SGLang, and a need: an attribute that SGLang has to have."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

SRT = "sglang.srt."
WORKER = SRT + "speculative.eagle_worker_v2."
EXECUTOR = SRT + "model_executor."
FA3 = SRT + "layers.attention.flashattention_backend."
RESULTS = SRT + "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
STATE = SRT + "managers.scheduler_components.internal_state.SchedulerInternalStateController."


class Process(Enum):
    """The processes that add a hook; each value is the heading of their table in docs/architecture.md."""

    ENTRY = "Every process, from the start"
    LAUNCHER = "Launcher, once the server is asked to be adaptive"
    HTTP = "The same, or each HTTP worker of `--tokenizer-worker-num`"
    EVERY = "Launcher and every child of an adaptive server"
    SCHEDULER = "Scheduler of an adaptive server"
    SCHEDULER_CUDA = "The same with a CUDA device"
    SCHEDULER_PLAN_STREAM = "The same with SGLang's plan stream on"
    SCHEDULER_VERIFY_BUDGET = "The same with SGLANG_ADAPTIVE_VERIFY_BUDGET set"
    SCHEDULER_CUDA_VERIFY_BUDGET = "The same with SGLANG_ADAPTIVE_VERIFY_BUDGET set and a CUDA device"


_ON_CUDA = (Process.SCHEDULER_CUDA, Process.SCHEDULER_CUDA_VERIFY_BUDGET)


@dataclass(frozen=True, slots=True)
class Need:
    """One attribute of SGLang: a callable with these parameters, or a class with these fields."""

    target: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    patched: str | None = None
    """A parameter that only a source with this project's patches has; use the plugin or the patches, not both."""

    on_cuda: bool = False
    """Whether the attribute's module can be imported only with a CUDA device."""

    def problem(self) -> str | None:
        """Return what is wrong with the installed SGLang's attribute, or None."""
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"{self.target} is missing ({error})"
        if self.patched in _parameter_names(found):
            return f"{self.target} carries this project's patches; use the patches or the plugin, not both"
        missing = [name for name in self.parameters if name not in _parameter_names(found)]
        missing += [name for name in self.fields if name not in _field_names(found)]
        return f"{self.target} has no {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of this package that runs before, after, around or instead of one of SGLang's."""

    target: str
    """SGLang's function, as a dotted path."""

    kind: str
    """"before", "after", "around" or "replace": the values of SGLang's HookType."""

    function: str
    """Our function, as ``room.module:name`` below ``sglang_plugin``; imported when the hook is added."""

    parameters: tuple[str, ...] = ()
    """The parameters of SGLang's function that ours relies on."""

    process: Process = Process.SCHEDULER

    def load(self) -> Callable[..., Any]:
        """Import and return our function or class."""
        module, name = self.function.split(":")
        function: Callable[..., Any] = getattr(import_module(f"sglang_adaptive.sglang_plugin.{module}"), name)
        return function

    def need(self) -> Need:
        """Return the need of this hook: its target with its parameters."""
        return Need(self.target, self.parameters, on_cuda=self.process in _ON_CUDA)


def _parameter_names(function: Any) -> set[str]:
    try:
        # Another plugin's wrapper may take *args, **kwargs; functools.wraps leaves the real signature readable.
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _field_names(cls: Any) -> set[str]:
    if dataclasses.is_dataclass(cls):
        return {field.name for field in dataclasses.fields(cls)}
    return set(getattr(cls, "__annotations__", {}))
