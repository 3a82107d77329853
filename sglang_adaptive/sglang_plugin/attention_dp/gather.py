"""The hooks on SGLang's gather: each rank's ballot goes along in further columns, and all ranks count the same rows.

The gather is made before every batch, by idle ranks too; with speculation first for prefills, then for decodes. The
last one before a round decides its steps. SGLang reads its own columns by their index from the left.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.policy.vote.ballot import silent, width
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps
from sglang_adaptive.sglang_plugin.scheduler.worker import LARGEST_BATCH, controller_of, interrupt_for_prefill

logger = logging.getLogger(__name__)

_live: JointSteps | None = None
"""One a process, because the gather does not know the worker."""


def install(result: None, worker: Any) -> None:
    """After EAGLEWorkerV2.init_cuda_graphs: run agreed steps from now on, with attention DP."""
    from sglang.srt.runtime_context import get_parallel

    controller, parallel = controller_of(worker), get_parallel()
    if controller is not None and parallel.attn_dp_size > 1:
        if parallel.tp_rank == 0:
            ranks = parallel.attn_dp_size
            logger.info("adaptive: before each round the %d ranks of attention DP agree on its steps", ranks)
        join(controller, parallel.attn_dp_rank)


def join(controller: AdaptiveController, rank: int) -> None:
    """Let the gathers of this process decide the steps of *controller*, which has all its runtime states.

    *rank* is its place among the attention-DP ranks.
    """
    global _live
    _live = JointSteps(controller, rank)


def add_ballot(row: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
    """After a rank's row is made: append its ballot. A rank in a prefill has no say."""
    if _live is None:
        return None
    return _appended(row, _live.row(0 if info.is_extend_in_batch else info.num_tokens))


def add_silence(row: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
    """After the row of a rank that is not there is made: append the ballot of one that has no say."""
    return None if _live is None else _appended(row, silent(_live.depths).row())


def count(result: None, info: Any, *args: Any, **kwargs: Any) -> None:
    """After the gather: set the steps of the coming round from the ballots of all ranks."""
    if _live is not None:
        _live.take(info.tp0_info_cpu[:, -width(_live.depths) :].tolist())


def note_round(result: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    """After EAGLEWorkerV2.forward_batch_generation: note on the result how large the largest batch of the round is."""
    if _live is not None:
        setattr(result, LARGEST_BATCH, _live.largest)


def interrupt_clock(processor: Any, *args: Any, **kwargs: Any) -> None:
    """Before the result of a batch without decodes is processed: do not time the next round, for others went on."""
    interrupt_for_prefill(processor.model_worker)


def _appended(row: Any, columns: list[int]) -> Any:
    import torch

    return torch.cat([row, torch.tensor(columns, device=row.device, dtype=row.dtype)])
