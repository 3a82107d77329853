"""What this package needs from SGLang: functions with parameters, and classes with attributes.

SGLang logs and swallows errors while it applies hooks. Without a check at launch, a renamed function would silently
turn adaptive speculation off.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dis import EXTENDED_ARG, opmap
from functools import cache
from typing import Any

STORE_ATTR = opmap["STORE_ATTR"]

RELEASES = ("0.5.22", "0.5.23")
"""The supported releases of SGLang, oldest first."""


class ContractError(RuntimeError):
    """The installed SGLang lacks a function, parameter or attribute that this package relies on."""


def supported() -> str:
    """Name the supported releases."""
    return " and ".join(f"sglang {release}" for release in RELEASES)


def verdict(release: str, missing: Sequence[str], changed: Sequence[str], between: str = "; ") -> str:
    """Say how a *release* of SGLang fits: what is *missing*, and which hooked bodies have *changed*.

    *between* separates entries; a line break makes a list of several.
    """
    if missing:
        others = [f"these hooked functions have changed: {', '.join(changed)}"] if changed else []
        return f"{release} does not fit, this package supports {supported()}: {between.join([*missing, *others])}"
    if changed:
        return f"{release} fits; these hooked functions are not those of {supported()}: {', '.join(changed)}"
    if release not in RELEASES:
        return f"{release} fits; it is not tested, but its hooked functions are those of {supported()}"
    return f"{release} fits: it has everything that this package hooks and calls"


@dataclass(frozen=True, slots=True)
class Need:
    """One name in SGLang, and what it must have."""

    target: str
    """A dotted path."""
    names: tuple[str, ...] = ()
    """A function's parameters, or a class's attributes: fields, annotations, and what a method assigns."""
    patched: str | None = None
    """A parameter that exists only with this project's patches; use the plugin or the patches, not both."""
    on_cuda: bool = False
    """Whether its module can be imported only with a CUDA device."""
    since: str | None = None
    """The first of `RELEASES` that has it; the end of this file handles the earlier ones."""
    by: str = ""
    """What relies on it: a file of this package below ``sglang_plugin/``, and for a hook its function."""

    @property
    def named(self) -> str:
        """The target, and what relies on it."""
        return f"{self.target} ({self.by})" if self.by else self.target

    def problem(self) -> str | None:
        """Return the problem with the installed SGLang, or None."""
        if self.since is not None and sglang_release() in RELEASES[: RELEASES.index(self.since)]:
            return None
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"{self.named} is missing ({error})"
        if self.patched in parameters_of(found):
            return f"{self.target} carries this project's patches; use the patches or the plugin, not both"
        there = attributes_of(found) if isinstance(found, type) else parameters_of(found)
        missing = [name for name in self.names if name not in there]
        return f"{self.named} has no {', '.join(missing)}" if missing else None


def sglang_release() -> str:
    """Return the version of the SGLang that is imported here."""
    import sglang

    return str(sglang.__version__)


def parameters_of(function: Any) -> list[str]:
    """Return the names of a callable's parameters in order, without ``*args`` and ``**kwargs``; none if unknown."""
    try:
        # Another plugin's wrapper may take *args, **kwargs; functools.wraps leaves the real signature readable.
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


@cache
def attributes_of(cls: Any) -> frozenset[str]:
    """Return the attribute names of *cls* instances, as far as the class and the code of its methods show."""
    found = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for base in getattr(cls, "__mro__", ()):
        if base is not object:
            found |= set(vars(base)) | set(getattr(base, "__annotations__", {}))
            found.update(name for method in vars(base).values() for name in _assigned(method))
    return frozenset(found)


def _assigned(method: Any) -> Iterator[str]:
    """Yield the attributes that the code of *method* assigns; none if it is not a function."""
    code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
    if code is not None:
        place = 0
        for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
            place = place << 8 | low
            if operation == STORE_ATTR:
                yield code.co_names[place]
            if operation != EXTENDED_ARG:
                place = 0


# Differences between the supported releases.


def draft_placement(drafter: Any) -> AbstractContextManager[None]:
    """Return SGLang's tensor-parallel context for building the parts of a draft worker."""
    from sglang.srt.speculative.spec_utils import draft_tp_context

    for layout in ("parallel_layout", "draft_parallel_layout"):  # the second is DFLASH's
        if hasattr(drafter, layout):
            return draft_tp_context(getattr(drafter, layout))  # type: ignore[no-any-return]
    return draft_tp_context(drafter.draft_owns_attention)  # type: ignore[no-any-return]  # SGLang 0.5.22


def import_in_workers(application: str) -> str:
    """Make SGLang's HTTP workers import *application*, "module:name"; return what they would have imported."""
    from sglang.srt.environ import envs

    if hasattr(envs, "SGLANG_HTTP_SERVER_APP_PATH"):
        named = str(envs.SGLANG_HTTP_SERVER_APP_PATH.get())
        envs.SGLANG_HTTP_SERVER_APP_PATH.set(application)
        return named
    import uvicorn  # SGLang 0.5.22 names its own in the call

    run: Any = uvicorn.run
    uvicorn.run = lambda _, **options: run(application, **options)
    return "sglang.srt.entrypoints.http_server:app"


def worker_of_platform(algorithm: Any) -> type | None:
    """Return the worker class of a platform outside SGLang for *algorithm*; None for SGLang's own."""
    if not hasattr(algorithm, "get_platform_worker_cls"):
        return None  # SGLang 0.5.22 knows none
    return algorithm.get_platform_worker_cls()  # type: ignore[no-any-return]


def links_from_mask(ngram_worker: Any) -> Callable[..., None]:
    """Return the function of SGLang's module *ngram_worker* that fills in the links of trees."""
    if hasattr(ngram_worker, "reconstruct_indices_from_tree_mask_func"):
        return ngram_worker.reconstruct_indices_from_tree_mask_func  # type: ignore[no-any-return]
    return ngram_worker.reconstruct_indices_from_tree_mask  # type: ignore[no-any-return]  # SGLang 0.5.22
