"""A verify budget on replayed acceptance: the trace's confidence ranks, and only drafts that are kept are accepted.

With dummy weights the draft's own chances say nothing. The host knows each request's position in the trace, so it gives
the device what the draft gave its tokens there, and the rank of each among the batch: the host has to know what is
kept, and two devices may round products differently. The device packs, spreads and counts as it does for real chances.
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
        self._sure: Any = None
        """Of a replayed round, what the draft gave its tokens, float32 [requests, steps], on the host."""
        self._kept: list[int] | None = None

    def take(self) -> list[int] | None:
        """Return the drafts that the round keeps of each request, once; None where it verifies all."""
        kept, self._kept = self._kept, None
        return kept

    def packing(self, original: Callable[..., Any], rounds: Any, verify_input: Any) -> Any:
        """Around PackedRounds.packing: take the trace's chances for the draft's."""
        import torch

        self._sure = self._kept = None
        requests, width = verify_input.retrieve_next_token.shape
        drafted = rounds.drafted()
        if drafted is None or not self._replay.concerns(requests):
            return original(rounds, verify_input)
        self._sure = torch.tensor(self._replay.sure(width - 1))
        rounds.note_drafts(_on(drafted.device, self._sure))
        packing = original(rounds, verify_input)
        if packing is not None:
            from sglang_adaptive.sglang_plugin.verify_budget import ranking

            budget = len(packing.places) // requests - 1
            self._kept = ranking.prefixes(ranking.ranks(self._sure), budget).tolist()
        return packing

    def ranks(self, original: Callable[..., Any], chances: Any) -> Any:
        """Around ranking.ranks: rank a replayed round on the host."""
        if self._sure is None or chances.device == self._sure.device:
            return original(chances)
        return _on(chances.device, original(self._sure[:, : chances.shape[1]]).contiguous())


def _on(device: Any, found: Any) -> Any:
    if device == found.device:
        return found
    return found.pin_memory().to(device, non_blocking=True)  # or the scheduler would wait for the device


def register(replay: Replay) -> BudgetReplay:
    """Hook the packed rounds of this process, where they are asked for, and allow them on replayed acceptance."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    budget = BudgetReplay(replay)
    HookRegistry.register(_BUDGET + "packed_rounds.PackedRounds.packing", _around(budget.packing), HookType.AROUND)
    HookRegistry.register(_BUDGET + "ranking.ranks", _around(budget.ranks), HookType.AROUND)
    HookRegistry.register(_BUDGET + "setup_check.accepts_unseen", _seen, HookType.REPLACE)
    return budget


def _around(method: Callable[..., Any]) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any) -> Any:
        return method(original, *args)

    return around


def _seen() -> bool:
    """In the place of accepts_unseen: what is accepted is cut to what is kept."""
    return False
