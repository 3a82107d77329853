"""What SGLang has to have for this package: functions with parameters, and classes with attributes.

SGLang logs and swallows errors while it applies hooks. Without a check at launch, a renamed function would turn
adaptive speculation off without a message.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
import textwrap
from dataclasses import dataclass
from typing import Any

RELEASES = ("0.5.23",)
"""The releases of SGLang that this package serves, the oldest first."""


class ContractError(RuntimeError):
    """The installed SGLang lacks a function, parameter or attribute that this package relies on."""


def supported() -> str:
    """Name the releases that are served."""
    return " and ".join(f"sglang {release}" for release in RELEASES)


@dataclass(frozen=True, slots=True)
class Need:
    """One name in SGLang: a callable with these parameters, or a class with these attributes."""

    target: str
    """A dotted path."""

    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    """Fields, annotations, class attributes, and what a method assigns to ``self``."""

    patched: str | None = None
    """A parameter that only a source with this project's patches has; use the plugin or the patches, not both."""

    on_cuda: bool = False
    """Whether its module can be imported only with a CUDA device."""

    def problem(self) -> str | None:
        """Return what is wrong with the installed SGLang's, or None."""
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"{self.target} is missing ({error})"
        if self.patched in parameters_of(found):
            return f"{self.target} carries this project's patches; use the patches or the plugin, not both"
        missing = [name for name in self.parameters if name not in parameters_of(found)]
        if self.attributes:
            there = attributes_of(found)
            missing += [name for name in self.attributes if name not in there]
        return f"{self.target} has no {', '.join(missing)}" if missing else None


def parameters_of(function: Any) -> set[str]:
    """Return the names of a callable's parameters; none where it has no signature."""
    try:
        # Another plugin's wrapper may take *args, **kwargs; functools.wraps leaves the real signature readable.
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def attributes_of(cls: Any) -> set[str]:
    """Return the names of what instances of *cls* have, as far as its source says."""
    found = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for base in getattr(cls, "__mro__", ()):
        if base is object:
            continue
        found |= set(vars(base)) | set(getattr(base, "__annotations__", {}))
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        found |= set(re.findall(r"\bself\.(\w+)\s*(?::[^=\n]+)?=[^=]", source))
        found |= set(re.findall(r"\bself\.(\w+),", source))  # one of several names in an assignment
    return found
