"""Makes sampling parameters for each row of a verify, where a plain decode has one row per request."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_REQUEST = "__req__"
"""The key under which SGLang passes its request to a custom logit processor."""
_REPEATED = ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed")
"""Tensors of SamplingBatchInfo with one row per request that the sampler reads."""


def repeated(info: Any, width: int) -> Any:
    """Return the SamplingBatchInfo *info* for *width* rows per request, without penalties, bias and masks."""
    fields = {name: getattr(info, name) for name in _REPEATED}
    if width > 1:
        fields = {name: None if one is None else one.repeat_interleave(width, 0) for name, one in fields.items()}
    if info.has_custom_logit_processor:
        entries = info.custom_logit_processor.items()
        fields["custom_logit_processor"] = {key: _entry(entry, width) for key, entry in entries}
        fields["custom_params"] = [params for params in info.custom_params for _ in range(width)]
    return dataclasses.replace(
        info, penalizer_orchestrator=None, acc_additive_penalties=None, acc_scaling_penalties=None, logit_bias=None,
        grammar_mask=None, **fields,
    )  # fmt: skip


def _entry(entry: Any, width: int) -> Any:
    """Return a processor for all rows of its requests, or only each first row if it reads the request."""
    import torch

    each = 1 if reads_request(entry.processor.__class__) else width
    rows = [row * width + more for row in entry.rows for more in range(each)]
    indices = entry.indices[:, None] * width + torch.arange(each, device=entry.indices.device)
    return dataclasses.replace(entry, rows=rows, indices=indices.flatten())


def first_rows_alone(info: Any) -> list[str]:
    """Name the processors of *info* that read the request."""
    return [entry.processor.__class__.__name__ for entry in _reading(info)]


def without_drafts(info: Any, first_children: Tensor) -> Tensor | None:
    """Return *first_children* [requests, width] without the drafts of requests whose processors read the request.

    None if there are none.
    """
    cut = None
    for entry in _reading(info):
        cut = first_children.clone() if cut is None else cut
        cut[:, 0].index_fill_(0, entry.indices, -1)
    return cut


def _reading(info: Any) -> list[Any]:
    entries = (info.custom_logit_processor or {}).values()
    return [entry for entry in entries if reads_request(entry.processor.__class__)]


@cache
def reads_request(processor: Hashable) -> bool:
    """Whether the code of a *processor*'s class, or code that it calls, contains the key of its request.

    Code that is not Python might, so it counts as if it did.
    """
    assert isinstance(processor, type)
    parts = [part for base in processor.__mro__[:-1] for part in vars(base).values()]
    seen: set[int] = set()
    while parts:
        part = parts.pop()
        part = getattr(part, "__func__", part)
        part = getattr(part, "__wrapped__", part)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, str) and part == _REQUEST:
            return True
        if isinstance(part, property):
            parts += [part.fget, part.fset]
        elif isinstance(part, FunctionType):
            parts += [part.__code__, *(_of_its_module(part, name) for name in _names(part.__code__))]
            parts += [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        elif isinstance(part, type):
            parts += vars(part).values()
        elif isinstance(part, CodeType):
            parts += part.co_consts
        elif isinstance(part, (tuple, frozenset)):
            parts += part
    return not isinstance(processor.__call__, FunctionType)


def _names(code: CodeType) -> set[str]:
    """Return the names that *code* and the functions defined in it use."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _of_its_module(function: FunctionType, name: str) -> Any:
    """Return the global *name* of *function* if it is a string, or a function or class of the same module."""
    found = function.__globals__.get(name)
    same = isinstance(found, (FunctionType, type)) and found.__module__ == function.__module__
    return found if same or isinstance(found, str) else None


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
