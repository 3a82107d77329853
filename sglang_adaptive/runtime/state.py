"""Everything that one speculation depth needs in order to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

# SGLang's objects; named here and left untyped because this layer must load without SGLang.
AttentionBackend: TypeAlias = Any
GraphRunner: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class SpecRuntimeState:
    """The attention backends and CUDA graphs of one depth, built at start-up and swapped as a whole.

    Field names are SGLang 0.5.23's. A backend or runner that a depth does not use is None: no draft stage at
    zero steps, no graphs when CUDA graphs are off.
    """

    speculative_num_steps: int
    speculative_num_draft_tokens: int
    """Width of the verify pass in tokens a request: the drafts of a chain and its root, steps + 1."""

    draft_attn_backend: AttentionBackend | None
    cuda_graph_runner: GraphRunner | None

    target_attn_backend: AttentionBackend
    target_graph_runner: GraphRunner | None

    draft_extend_attn_backend: AttentionBackend | None
    cuda_graph_runner_for_draft_extend: GraphRunner | None
