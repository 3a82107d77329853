"""An index of where the modules of a process hold functions that are about to be hooked.

``from X import f`` copies a reference, so for each hook SGLang scans every attribute of every module: 235,000
attributes of 7,000 modules in a server's process, for each of the 80 hooks of a scheduler. An index needs one pass.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import ModuleType


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
