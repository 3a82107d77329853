"""A verify budget on replayed acceptance: the trace's confidence ranks, and only drafts that are kept are accepted.

With dummy weights the draft's own chances say nothing. The host knows each request's position in the trace, so it ranks
by what was recorded there, and gives the device chances that rank alike: 1 for drafts to keep and 0 for others. The
device ranks, packs and spreads as it does for real chances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.server.replayed import Replay

_BUDGET = "sglang_adaptive.sglang_plugin.verify_budget."


class BudgetReplay:
    """What a packed round of a replay keeps of each request."""

    __name__ = "replayed_budget"

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._kept: list[int] | None = None

    def take(self) -> list[int] | None:
        """Return the drafts that the round keeps of each request, once; None where it verifies all."""
        kept, self._kept = self._kept, None
        return kept

    def packing(self, original: Callable[..., Any], rounds: Any, verify_input: Any) -> Any:
        """Around PackedRounds.packing: rank by the trace."""
        import torch

        from sglang_adaptive.sglang_plugin.verify_budget.ranking import likeliest_prefixes

        self._kept = None
        requests, width = verify_input.retrieve_next_token.shape
        drafted = rounds.drafted()
        if drafted is None or not self._replay.concerns(requests) or width - 1 <= rounds.budget:
            return original(rounds, verify_input)
        kept = likeliest_prefixes(torch.tensor(self._replay.sure(width - 1)), rounds.budget)
        ranked = (torch.arange(width - 1) < kept[:, None]).float()
        if drafted.is_cuda:  # from pinned memory, or the scheduler would wait for the device
            ranked = ranked.pin_memory().to(drafted.device, non_blocking=True)
        rounds.note_drafts(ranked)
        packing = original(rounds, verify_input)
        self._kept = None if packing is None else kept.tolist()
        return packing


def register(replay: Replay) -> BudgetReplay:
    """Hook the packed rounds of this process, where they are asked for, and allow them on replayed acceptance."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    budget = BudgetReplay(replay)
    HookRegistry.register(_BUDGET + "packed_rounds.PackedRounds.packing", _around(budget), HookType.AROUND)
    HookRegistry.register(_BUDGET + "setup_check.accepts_unseen", _seen, HookType.REPLACE)
    return budget


def _around(budget: BudgetReplay) -> Callable[..., Any]:
    def packing(original: Callable[..., Any], rounds: Any, verify_input: Any) -> Any:
        return budget.packing(original, rounds, verify_input)

    return packing


def _seen() -> bool:
    """In the place of accepts_unseen: what is accepted is cut to what is kept."""
    return False
