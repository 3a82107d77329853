"""What the harness takes of this package's inside, beside ``hook_times.py`` and ``round_log.py``.

A change inside the package can move all of it. Servers are driven through configuration, HTTP and ``/server_info``.
"""

from __future__ import annotations

from typing import Any

_PLUGIN = "sglang_adaptive.sglang_plugin."

SHADOW_ACCEPTS = _PLUGIN + "zero_steps.shadow.accepts"
"""(drafts, pairs, result) -> list[int]: whether the first draft of each checked request at zero steps was right.

*pairs* are the checked requests: the row of each in the batch of the result, and its place among the drafts.
"""

RESOLVING = _PLUGIN + "round.Round.resolving"
"""(round, result, batch): a decode result has arrived; what it says of its drafts is checked next."""

SHORT_RESULT = _PLUGIN + "fast_path.short_verify.ShortVerify._result"
"""(verifier, batch, verify_input, output, plan): what a replayed verify pass comes to."""

ROUND_SAMPLE = _PLUGIN + "round.Round.sample"
"""(round, accept, verify_input, batch, logits_output, ...): what any other verify pass comes to."""

ROUND_DRAFT = _PLUGIN + "round.Round.draft"
"""(round, draft, drafter, batch) -> the verify input of a round that drafts, or looks its drafts up."""

PACKING = _PLUGIN + "verify_budget.rounds.PackedRounds.packing"
"""(rounds, verify_input): what a round of a verify budget keeps; None where it verifies all."""

RANKS = _PLUGIN + "verify_budget.rounds.ranks"
"""(chances [requests, steps]) -> the rank of each draft among the batch."""

ACCEPTS_UNSEEN = _PLUGIN + "verify_budget.setup_check.accepts_unseen"
"""() -> bool: whether drafts are accepted that nobody verified."""


def kept_drafts(chances: Any, budget: int) -> list[int]:
    """Return the drafts that each request keeps of *chances*, float32 [requests, steps] on the host."""
    from sglang_adaptive.sglang_plugin.verify_budget import packing, rounds

    found: list[int] = packing.prefixes(rounds.ranks(chances), budget).tolist()
    return found


def without_mamba2_repair() -> None:
    """Undo this package's repair of Mamba2's verify in this process."""
    from sglang_adaptive.sglang_plugin import repairs

    repairs.mamba2_width_of_the_buffer = dict  # the arguments as they came
