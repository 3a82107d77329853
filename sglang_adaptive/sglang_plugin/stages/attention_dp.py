"""One number of steps per round for all ranks of attention DP, agreed on in SGLang's gather before each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps, silent, width
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.notes import note_of
from sglang_adaptive.sglang_plugin.setup import AsIf
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

logger = logging.getLogger(__name__)

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")


def unsupported_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Wrap SGLang's adaptive_unsupported_reason: accept attention DP where it can work, unless it is turned off."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.environ import envs

    if "attention-dp" in features.turned_off() or resolved_view(server_args).attn_dp_size == 1:
        return original(server_args)
    if (reason := original(AsIf(server_args, attn_dp_size=1))) is not None:
        return reason
    if (server_args.speculative_algorithm or "").upper() not in _ALGORITHMS:
        return f"attention DP is not supported with {server_args.speculative_algorithm}"
    if envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER.get() or resolved_view(server_args).dwdp_size > 1:
        return "attention DP is not supported where ranks skip the gather before a round"
    if resolved_view(server_args).enable_dp_attention_local_control_broadcast:
        return "attention DP is not supported with --enable-dp-attention-local-control-broadcast"
    if envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION.get():
        return "attention DP is not supported with SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION, which always drafts"
    return None


class AgreedSteps(Stage):
    """Carries this rank's ballot in extra columns of SGLang's gather; all ranks count the same rows.

    All ranks, even idle ones, run the gather before every batch; with speculation first for prefills, then for decodes.
    The last gather before a round decides its steps. SGLang indexes its own columns from the left.
    """

    def __init__(self, controller: AdaptiveController, ranks: JointSteps) -> None:
        self._controller, self.ranks = controller, ranks

    @classmethod
    def where_it_can(cls, controller: AdaptiveController) -> list[Stage]:
        """Return the stage of *controller*, which has all its runtime states; none without attention DP."""
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.attn_dp_size == 1:
            return []
        if parallel.tp_rank == 0:
            ranks = parallel.attn_dp_size
            logger.info("adaptive: before each round the %d ranks of attention DP agree on its steps", ranks)
        return [cls(controller, JointSteps(controller, parallel.attn_dp_rank))]

    def local_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Append this rank's ballot to its row of the gather; a rank in a prefill abstains."""
        requests = 0 if info.is_extend_in_batch else info.num_tokens
        return _appended(rest(info, *args, **kwargs), self.ranks.row(requests))

    def absent_row(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Append an abstaining ballot to the row of an absent rank."""
        return _appended(rest(info, *args, **kwargs), silent(self.ranks.depths).row())

    def gathered(self, rest: Rest, info: Any, *args: Any, **kwargs: Any) -> None:
        """Gather the rows, and set the steps of the next round from the ballots of all ranks."""
        rest(info, *args, **kwargs)
        self.ranks.take(info.tp0_info_cpu[:, -width(self.ranks.depths) :].tolist())

    def launch(self, rest: Rest, worker: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a batch, and note the number of requests on the round's largest rank."""
        result = rest(worker, *args, **kwargs)
        note_of(result, self._controller.states).largest_batch = self.ranks.largest
        return result


def _appended(row: Any, columns: list[int]) -> Any:
    import torch

    return torch.cat([row, torch.tensor(columns, device=row.device, dtype=row.dtype)])
