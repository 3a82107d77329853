"""The one attribute that this package sets on SGLang's objects, for data that must travel with them.

- On a command line and ServerArgs: the launcher's findings, a dict. "reading" is the configuration, a `Reading`.
  "reason" says why adaptive speculation is off, or is None if it is on.
- On a result: the `RoundNote` of its round.
- On a batch: zeros [requests, vocabulary] for SGLang's penalties, if its next round needs none of them.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.states import RuntimeStates

NOTE = "_adaptive_note"
"""ServerArgs accepts new attributes only with a leading underscore."""


def note_of(result: Any, states: RuntimeStates) -> RoundNote:
    """Return the note on the round of *result*; it is made at the launch, while what the round does is live."""
    found: RoundNote | None = getattr(result, NOTE, None)
    if found is None:
        width = result.speculative_num_draft_tokens
        found = RoundNote(states.live if width in (None, states.live.steps + 1) else states.of(width - 1))
        setattr(result, NOTE, found)
    return found
