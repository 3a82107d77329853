"""Differences between the supported releases of SGLang."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


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
