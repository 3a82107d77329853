"""The runtime state of one number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

# SGLang's objects, untyped because this layer must load without SGLang.
AttentionBackend: TypeAlias = Any
GraphRunner: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class SpecRuntimeState:
    """The attention backends and CUDA graphs of one number of steps, built at start-up and switched as a whole.

    Field names are SGLang 0.5.23's. An unused backend or runner is None: that of the draft at zero steps, and graphs
    when CUDA graphs are off.
    """

    speculative_num_steps: int
    speculative_num_draft_tokens: int
    """Draft tokens that a verify pass reads for a request: steps + 1."""

    draft_attn_backend: AttentionBackend | None
    cuda_graph_runner: GraphRunner | None

    target_attn_backend: AttentionBackend
    target_graph_runner: GraphRunner | None

    draft_extend_attn_backend: AttentionBackend | None
    cuda_graph_runner_for_draft_extend: GraphRunner | None
