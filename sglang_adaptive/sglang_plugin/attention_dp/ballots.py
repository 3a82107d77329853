"""Each rank's ballot goes along in further columns of SGLang's gather, and all ranks count the same rows.

The gather is made before every batch, by idle ranks too; with speculation first for prefills, then for decodes. The
last one before a round decides its steps. SGLang reads its own columns by their index from the left.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.policy.vote import silent, width
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps

logger = logging.getLogger(__name__)


def joint_steps(controller: AdaptiveController) -> JointSteps | None:
    """Return what agrees on the steps of *controller*, which has all its runtime states; None without attention DP."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.attn_dp_size == 1:
        return None
    if parallel.tp_rank == 0:
        ranks = parallel.attn_dp_size
        logger.info("adaptive: before each round the %d ranks of attention DP agree on its steps", ranks)
    return JointSteps(controller, parallel.attn_dp_rank)


def appended(row: Any, columns: list[int]) -> Any:
    """Return *row*, a tensor of one rank, with *columns* after its own."""
    import torch

    return torch.cat([row, torch.tensor(columns, device=row.device, dtype=row.dtype)])


def no_say(ranks: JointSteps) -> list[int]:
    """Return the columns of a rank that is not there."""
    return silent(ranks.depths).row()


def rows(info: Any, ranks: JointSteps) -> list[list[int]]:
    """Return the ballots of all ranks in SGLang's gathered *info*."""
    gathered: list[list[int]] = info.tp0_info_cpu[:, -width(ranks.depths) :].tolist()
    return gathered
