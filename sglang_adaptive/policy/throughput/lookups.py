"""When to verify drafts looked up in each request's own text instead of the draft model's.

A lookup finds the earlier place that agrees with the latest ``m`` tokens, the match, and drafts what follows there (see
``sglang_adaptive.lookups.lookup``). The number of correct drafts is learned by the match at the start of a round:

    S(r | m) = (rounds with r or more right + PRIOR * (m - 1) / (m + r - 1)) / (rounds + PRIOR)
    Y_k(m) = 1 + S(1 | m) + ... + S(k | m)                         tokens of a round of k drafts

``(m - 1) / (m + r - 1)`` is the probability if the next token agrees with probability ``(m - 1) / m`` after any m that
did. Recorded edits and tool calls of two models are close to that: 0.44 to 0.46 at 2, 0.76 at 4, 0.84 to 0.89 at 8 and
0.99 from 64 on. Every round shows how far its tokens agree, whatever drafted them, so this is learned before a lookup
is ever verified.

A round of k lookups runs if the requests' Y_k over its time promises more than the live steps. A draft model does
better in copied text than elsewhere, so its accepted drafts there are counted separately. Lookup rounds must promise
more after they lost against the live steps; no other account includes them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.choice import WINDOW_ROUNDS
from sglang_adaptive.policy.throughput.cost import RoundTimeRow

DRAFTS = (15, 31)
"""Drafts of the two kinds of lookup rounds: with the last token 16 and 32 rows per request, which have CUDA graphs."""
REQUESTS = 4
"""Largest batch of a lookup round. All requests get as many rows as the one that copies, so only small batches pay."""
SHORTEST, LONGEST = 2, 64
"""Shortest match, and the longest one that is compared."""
LEVELS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Shortest match of each level; trials of one level are counted together."""
PRIOR = 16.0
"""Weight of the formula in rounds at each level, and of a factor of 1 in tokens in ``copying``."""
MEMORY = 512.0
"""Rounds of a level, and tokens of copied text, after which counts are halved, because texts change."""
FURTHEST = DRAFTS[-1]
"""Longest agreement that is distinguished, in tokens."""
RUN = 8
"""Match from which text is considered copied."""
MARGIN = 0.03
"""Gain that lookups must promise: in a short run, a switch there and back costs about as much."""
MARGIN_PER_LOST = 0.2
"""Additional gain that they must promise per round of the live steps recently lost: with 0.1 a mixture of experts is
served at 0.992 instead of 0.998 of the policy without lookups (simulated)."""
FOLLOWING_SECONDS = 1e-4
"""Host time to track texts, per round: 5 to 7% of SmolLM2's rounds of 1.3 to 1.6 ms on an H100. Round times do not show
it separately, so lookups must earn it."""
EARNED = 0.5
"""Share of the time saved by a lookup round that may be spent on tracking texts."""
PATIENCE, MOST_EARNED = 32, 512
"""Rounds tracked at first, and the most that are left after lookups have earned some."""
REST, MOST_REST, LOOK = 26, 104, 6
"""Once none are left: rounds of the first rest, of the longest rest, and of a look. A rest doubles after each look that
earned nothing. In the first two rounds of a look the device catches up."""
_LEVEL = [bisect_right(LEVELS, match) - 1 for match in range(LONGEST + 1)]
"""Level by match; -1 below SHORTEST."""


class Agreement:
    """How far texts agree with lookups from the start of a round, by the level of the match at its start."""

    def __init__(self) -> None:
        self._reached = [[PRIOR * (m - 1.0) / (m + r - 1.0) for r in range(FURTHEST + 1)] for m in LEVELS]
        """By level and tokens, the rounds from whose start at least so many tokens agreed. PRIOR of them are only
        assumed, and forgotten like the others."""
        self._sums: list[list[float] | None] = [None] * len(LEVELS)
        """By level, their running sums; None if outdated."""

    def learn(self, match: int, agreed: int) -> None:
        """Count that *agreed* tokens, FURTHEST at most, agreed from the start of a round."""
        level = _LEVEL[min(match, LONGEST)]
        reached, self._sums[level] = self._reached[level], None
        for tokens in range(agreed + 1):
            reached[tokens] += 1.0
        if reached[0] > MEMORY:
            reached[:] = [0.5 * count for count in reached]

    def chance(self, match: int, tokens: int) -> float:
        """Return S(*tokens* | *match*), with *tokens* limited to FURTHEST; 0 if nothing was found."""
        if match < SHORTEST:
            return 0.0
        reached = self._reached[_LEVEL[min(match, LONGEST)]]
        return reached[min(tokens, FURTHEST)] / reached[0]

    def tokens(self, match: int, drafts: Sequence[int]) -> list[float]:
        """Return Y_k(*match*) for each k of *drafts*."""
        if match < SHORTEST:
            return [1.0] * len(drafts)
        level = _LEVEL[min(match, LONGEST)]
        sums = self._sums[level]
        if sums is None:
            sums = self._sums[level] = list(accumulate(self._reached[level]))
        return [sums[count] / sums[0] for count in drafts]

    def as_list(self) -> list[dict[str, float]]:
        """Return by level the rounds counted and the mean tokens with FURTHEST drafts, as JSON."""
        levels = zip(LEVELS, self._reached, strict=True)
        return [{"match": at, "rounds": n[0], "tokens": self.tokens(at, (FURTHEST,))[0]} for at, n in levels]


class Runs:
    """Tracks each request's copies over several rounds until they break, because a round shows only its own tokens.

    Rounds begin where drafts were wrong, and copies tend to break there too. So agreement is learned only from the
    tokens of a copy at which a round began.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._open: dict[Hashable, list[tuple[int, int]]] = {}
        """By request: match and tokens so far of each round start in the current copy."""

    def learn(self, observation: RoundObservation) -> None:
        """Learn from a round; copies of requests that are not in it are forgotten."""
        names = observation.requests or range(len(observation.lookups))
        before, self._open = self._open, {}
        for name, count, found in zip(names, observation.num_correct_drafts_per_req, observation.lookups, strict=False):
            begun = before.get(name, [])
            if found.match >= SHORTEST:
                begun.append((found.match, 0))
            broke = found.agreed < min(count + 1, FURTHEST)
            kept = []
            for match, since in begun:
                agreed = min(since + (found.agreed if broke else count + 1), FURTHEST)
                if broke or agreed == FURTHEST:
                    self._agreement.learn(match, agreed)
                else:
                    kept.append((match, agreed))
            if kept:
                self._open[name] = kept


class Lookups:
    """Decides before each round whether to look its drafts up."""

    def __init__(self) -> None:
        self.agreement = Agreement()
        self._runs = Runs(self.agreement)
        self.behind = 0
        """Rounds in flight when one is chosen: 1 with overlap scheduling."""
        self._matches: Sequence[int] = ()
        """Match of each request at the start of the round after the latest observed one; empty if not tracked."""
        self._left = float(PATIENCE)
        """Rounds to track before a rest; in a rest, its past rounds as a negative number."""
        self._rest = REST
        """Rounds of the current or next rest."""
        self._lost = 0.0
        """Rounds of the live steps recently lost by lookup rounds and not regained."""
        self._copied = self._expected = 0.0
        """Tokens of drafted rounds in copied text, and the tokens expected there for ordinary text."""

    @property
    def copying(self) -> float:
        """Factor by which a drafted round yields more tokens in copied text."""
        return max(1.0, (self._copied + PRIOR) / (self._expected + PRIOR))

    @property
    def rests(self) -> bool:
        """Whether texts need no tracking in the coming round."""
        return self._left <= 0.0

    def learn(self, observation: RoundObservation, acceptance: AcceptanceEstimator) -> None:
        """Learn from a round."""
        counts, steps = observation.num_correct_drafts_per_req, observation.steps
        self._matches = [found.now for found in observation.lookups]
        if len(counts) <= REQUESTS:  # larger batches are never tracked
            self._left -= 1.0
            if self._left <= -self._rest:
                self._left, self._rest = float(LOOK), min(2 * self._rest, MOST_REST)
        self._runs.learn(observation)
        for count, found in zip(counts, observation.lookups, strict=False):
            if found.match >= RUN and steps and not observation.looked_up:
                self._copied += count + 1
                self._expected += acceptance.tokens[min(steps, acceptance.depth)]
                if self._expected > MEMORY:
                    self._copied *= 0.5
                    self._expected *= 0.5

    def book(
        self, observation: RoundObservation, row: RoundTimeRow, live: int, acceptance: AcceptanceEstimator
    ) -> None:
        """Add the loss or gain of a lookup round against a round of the *live* steps."""
        counts, found = observation.num_correct_drafts_per_req, observation.lookups
        if live not in row.seconds or not counts or len(found) != len(counts):
            return
        expected = sum(self._drafted(one.match, live, acceptance) for one in found)
        loss = row.took[observation.shape] / row.seconds[live] - (sum(counts) + len(counts)) / expected
        self._lost = max(0.0, self._lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)
        if not self.rests:  # else the result came after a rest had begun
            earned = -EARNED * loss * row.seconds[live] / FOLLOWING_SECONDS
            self._left = min(max(self._left + earned, 0.0), float(MOST_EARNED))
            if earned > 0.0:
                self._rest = REST

    def _drafted(self, match: int, live: int, acceptance: AcceptanceEstimator) -> float:
        """Return the expected tokens of a request in a round of the *live* steps."""
        usual = acceptance.tokens[live]
        return min(live + 1.0, usual * self.copying) if match >= RUN else usual

    def chosen(
        self, batch_size: int, row: RoundTimeRow, live: int, before: int, acceptance: AcceptanceEstimator
    ) -> int:
        """Return the drafts to look up in the coming round, out of those in *row*; 0 if *live* steps promise more.

        *before* is the previous round's steps, or its lookup drafts; its result may still be in flight.
        """
        if len(self._matches) != batch_size or max(self._matches) < SHORTEST:
            return 0
        kinds = tuple(row.lookups)
        looked_up, drafted = [0.0] * len(kinds), 0.0
        usual, copied = self._drafted(0, live, acceptance), self._drafted(RUN, live, acceptance)
        for match in self._matches:
            lasts = 1.0
            if self.behind and match >= SHORTEST:
                passed = before + 1 if before in row.lookups else max(1, round(min(before + 1.0, self.copying * usual)))
                lasts, match = self.agreement.chance(match, passed), match + passed
            for kind, tokens in enumerate(self.agreement.tokens(match, kinds)):
                looked_up[kind] += lasts * tokens + (1.0 - lasts)
            drafted += usual + lasts * (copied - usual) if match >= RUN else usual
        rates = [tokens / row.lookups[drafts] for drafts, tokens in zip(kinds, looked_up, strict=True)]
        best = max(range(len(kinds)), key=rates.__getitem__)
        asked = 1.0 + MARGIN + MARGIN_PER_LOST * self._lost
        return kinds[best] if rates[best] > asked * drafted / row.seconds[live] else 0

    def as_dict(self, row: RoundTimeRow) -> dict[str, object]:
        """Return the estimates and the seconds of *row*, as JSON builtins."""
        seconds = {str(drafts): seconds for drafts, seconds in row.lookups.items()}
        return {"agreement": self.agreement.as_list(), "copying": self.copying, "seconds": seconds}
