"""Says in words what lookups would bring, for ``explain`` and ``simulate --trace``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_adaptive.lookups.tally import RUN


def lookup_words(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a tally as a dict, with ``worth``; nothing where nothing was counted."""
    if not report["rounds"]:
        return
    yield (
        f"Drafts looked up in a request's own text would yield {report['tokens_per_round']:.2f} tokens a "
        f"round, {100 * report['run_share']:.0f}% of them in rounds that accept {RUN} drafts or more "
        f"(exact, {report['requests']} finished requests, {report['tokens']} tokens)."
    )
    found = report["worth"]
    if found is not None:
        best = f"at {found['steps']} steps" if found["steps"] else "without drafts"
        yield (
            f"Where they pay, one request at a time would be {found['least']:.2f} to {found['most']:.2f} times as fast "
            f"as {best}, with {1000 * found['lookup_seconds']:.2f} ms for a round of lookups."
        )
