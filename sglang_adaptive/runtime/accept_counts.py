"""How many drafts each verified request had accepted, by the depth that drafted them.

One histogram a depth is all that is kept; tokens and acceptance by position follow from it when somebody asks.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from sglang_adaptive.policy.observation import RoundObservation


class AcceptCounts:
    """Histograms of accepted drafts since the server started; at most deepest depth + 1 counts for each depth."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def add(self, observation: RoundObservation) -> None:
        """Count the requests of a round."""
        self._counts[observation.steps].update(observation.num_correct_drafts_per_req)

    def tokens(self) -> dict[int, int]:
        """Return output tokens by depth: accepted drafts, and a bonus token for each request of a round.

        Tokens past the end of a request are counted, too: a round may verify more than the request still needed.
        """
        return {
            steps: sum((accepted + 1) * requests for accepted, requests in counts.items())
            for steps, counts in self._counts.items()
        }

    def by_position(self) -> list[dict[str, int]]:
        """Return for each draft position, from 1, how often it was reached and how often accepted.

        A position is reached when a draft was made there and all before it were accepted.
        """
        deepest = max(self._counts, default=0)
        reached, accepted = [0] * deepest, [0] * deepest
        for steps, counts in self._counts.items():
            alive = counts.total()
            for index in range(steps):
                reached[index] += alive
                alive -= counts[index]
                accepted[index] += alive
        return [
            {"position": position, "reached": reached[position - 1], "accepted": accepted[position - 1]}
            for position in range(1, deepest + 1)
        ]
