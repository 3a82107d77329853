"""Every method of a stage is that of an event, or is called by name."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from sglang_adaptive.sglang_plugin import rounds, stages
from sglang_adaptive.sglang_plugin.stage import Stage

PACKAGE = Path(rounds.__file__).parent
SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py")]


def test_stages_define_only_events_and_methods_that_are_called() -> None:
    found = [*_all_stages()]
    assert rounds.Rounds in found and len(found) > 25
    assert not [wrong for stage in found for wrong in unused(stage)]


def test_a_misspelt_event() -> None:
    class Misspelt(Stage):
        def draft_extends(self, rest: object, drafter: object) -> None: ...
        def befor_draft(self, drafter: object, batch: object) -> None: ...
        def draft(self, drafter: object, batch: object) -> None: ...

    assert unused(Misspelt) == ["Misspelt.draft_extends", "Misspelt.befor_draft", "Misspelt.draft"]


def unused(stage: type[Stage]) -> list[str]:
    """Return the public methods of *stage* that would never run: no event's, and not called by name."""
    methods = {name: of for name, of in vars(stage).items() if inspect.isfunction(of) and not name.startswith("_")}
    return [f"{stage.__name__}.{name}" for name, of in methods.items() if not _runs(name, of)]


def _runs(name: str, method: Callable[..., object]) -> bool:
    event = vars(Stage).get(name)
    if event is not None:
        return _takes_rest(method) == _takes_rest(event)
    return not _takes_rest(method) and any(re.search(rf"\.{name}\b", source) for source in SOURCES)


def _takes_rest(method: Callable[..., object]) -> bool:
    return [*inspect.signature(method).parameters][1:2] == ["rest"]


def _all_stages() -> Iterator[type[Stage]]:
    for module in pkgutil.walk_packages(stages.__path__, f"{stages.__name__}."):
        import_module(module.name)
    waiting = [Stage]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        yield from (stage for stage in below if stage.__module__.startswith("sglang_adaptive."))
