"""Keeps SGLang's log of overrides short, however often the steps change.

Every switch of SGLang 0.5.23 appends an entry, and every /server_info replays all of them; only the last one has an
effect.
"""

from __future__ import annotations

_SWITCH = "adaptive_spec.restore"
"""The source that SGLang names in the entry of a switch."""


def keep_latest_switch() -> None:
    """Drop all switches but the latest."""
    from sglang.srt.runtime_context import get_context

    log = get_context()._overrides_log
    earlier = [index for index, (source, _) in enumerate(log) if source == _SWITCH][:-1]
    for index in reversed(earlier):
        del log[index]
