"""The package internals that the harness uses, besides ``hook_times.py`` and ``round_log.py``.

A change inside the package may break any of them. Servers are driven by configuration, HTTP and ``/server_info``.
"""

from __future__ import annotations

_PLUGIN = "sglang_adaptive.sglang_plugin."

SHADOW_ACCEPTS = _PLUGIN + "stages.zero_steps.deferred_draft_extend.shadow_accepts"
"""(drafts, pairs, result) -> list[int]: whether the first draft of each checked request at zero steps was right.

*pairs* are the checked requests: each one's row in the batch of the result, and its index among the drafts.
"""

RESOLVING = _PLUGIN + "rounds.Rounds.resolve"
"""(round, rest, processor, result, batch): a decode result has arrived; its drafts are checked next."""

SHORT_RESULT = _PLUGIN + "stages.fast_path.short_passes.ShortVerify._result"
"""(verifier, batch, verify_input, output, plan): the result of a replayed verify pass."""

ROUND_SAMPLE = _PLUGIN + "repairs.Repairs.sample"
"""(stage, rest, verify_input, batch, logits_output, ...): the result of any other verify pass."""

ROUND_DRAFT = _PLUGIN + "rounds.Rounds.draft"
"""(round, draft, drafter, batch) -> the verify input of a round that drafts, or looks its drafts up."""


def without_mamba2_repair() -> None:
    """Undo this package's repair of Mamba2's verify in this process."""
    from sglang_adaptive.sglang_plugin import repairs

    repairs.mamba2_width_of_the_buffer = dict  # the arguments unchanged
