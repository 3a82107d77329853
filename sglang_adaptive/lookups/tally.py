"""The would-be acceptance of lookups, summed over finished requests, and a description of their gain in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.lookups.lookup import DRAFTS, Round

MATCHES = (0, 2, 4, 8, 16, 32, 64)
"""Minimum match of each row of a tally; 0: nothing was found."""
RUN = 8
"""Accepted drafts from which a round counts as part of a run."""
ROWS = DRAFTS + 1
"""Tokens per request that the target verifies in a lookup round."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Rounds over the decoded tokens of some requests, if all rounds were lookup rounds."""

    requests: int = 0
    rounds: tuple[int, ...] = (0,) * len(MATCHES)
    """By row of MATCHES."""
    tokens: tuple[int, ...] = (0,) * len(MATCHES)
    """Output tokens of these rounds, without each request's first token, which comes from its prefill."""
    run_tokens: int = 0
    """Output tokens of rounds that accept RUN or more drafts."""

    @classmethod
    def of(cls, found: Iterable[Round]) -> Tally:
        """Return the tally of one request."""
        rounds, tokens, run_tokens = [0] * len(MATCHES), [0] * len(MATCHES), 0
        for match, got in found:
            row = max(0, match.bit_length() - 1)
            rounds[row] += 1
            tokens[row] += got
            run_tokens += got if got > RUN else 0
        return cls(1, tuple(rounds), tuple(tokens), run_tokens)

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of both."""
        return Tally(
            self.requests + other.requests,
            tuple(map(int.__add__, self.rounds, other.rounds)),
            tuple(map(int.__add__, self.tokens, other.tokens)),
            self.run_tokens + other.run_tokens,
        )

    @property
    def tokens_per_round(self) -> float | None:
        """Output tokens per round; None without a round."""
        rounds = sum(self.rounds)
        return sum(self.tokens) / rounds if rounds else None

    @property
    def run_share(self) -> float | None:
        """Share of the output tokens that lie in runs; None without a token."""
        tokens = sum(self.tokens)
        return self.run_tokens / tokens if tokens else None

    def rows(self) -> list[tuple[int, int, int]]:
        """Return (minimum match, rounds, output tokens) of each row."""
        return list(zip(MATCHES, self.rounds, self.tokens, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return the tally as JSON builtins."""
        return {
            "requests": self.requests,
            "rounds": sum(self.rounds),
            "tokens": sum(self.tokens),
            "run_tokens": self.run_tokens,
            "tokens_per_round": self.tokens_per_round,
            "run_share": self.run_share,
            "by_match": [{"from": least, "rounds": rounds, "tokens": tokens} for least, rounds, tokens in self.rows()],
        }


def worth(
    tally: Tally, seconds: Mapping[int, float], tokens: Mapping[int, float] | Sequence[float], looked_up: float
) -> dict[str, Any] | None:
    """Return the gain from lookups over the best depth, one request at a time; None without a token or a depth.

    *seconds* and *tokens* are the time and expected tokens of a round by draft steps; *looked_up* is the time of a
    lookup round. The text now takes t = min seconds/tokens per token. A row of the tally whose rounds take less than
    that for its tokens is looked up; the rest is drafted as before. The draft's own acceptance in copied text is
    unknown: ``most`` assumes that it is the same as everywhere, ``least`` that all drafts are accepted there, which
    takes min seconds/(steps + 1) per token. Neither includes the round that a server may need to detect copying.
    """
    depths = [steps for steps in seconds if steps and steps < ROWS] or list(seconds)
    count = sum(tally.tokens)
    if not count or not depths:
        return None
    usual, steps = min((seconds[steps] / tokens[steps], steps) for steps in seconds)
    perfect = min(seconds[steps] / (steps + 1) for steps in depths)
    return {
        "least": _gain(tally, usual, min(perfect, usual), looked_up),
        "most": _gain(tally, usual, usual, looked_up),
        "steps": steps,
        "seconds": seconds[steps],
        "lookup_seconds": looked_up,
    }


def _gain(tally: Tally, usual: float, copying: float, looked_up: float) -> float:
    """Return the speedup from lookups; *usual* and *copying* are seconds per token without lookups."""
    saved = sum(max(0.0, tokens * copying - rounds * looked_up) for match, rounds, tokens in tally.rows() if match)
    now = sum(tally.tokens) * usual
    return now / (now - saved)


# The gain from lookups in words, for ``explain`` and ``simulate --trace``.


def lookup_words(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a tally as a dict, with ``worth``; nothing if nothing was counted."""
    if not report["rounds"]:
        return
    yield (
        f"Drafts looked up in a request's own text would yield {report['tokens_per_round']:.2f} tokens per "
        f"round, {100 * report['run_share']:.0f}% of them in rounds that accept {RUN} drafts or more "
        f"(exact, {report['requests']} finished requests, {report['tokens']} tokens)."
    )
    found = report["worth"]
    if found is not None:
        best = f"at {found['steps']} steps" if found["steps"] else "without drafts"
        yield (
            f"Where they pay off, a single request would be {found['least']:.2f} to {found['most']:.2f} times as fast "
            f"as {best}, with {1000 * found['lookup_seconds']:.2f} ms per round of lookups."
        )
