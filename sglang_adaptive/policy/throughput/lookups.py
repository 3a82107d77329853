"""When to verify drafts that are looked up in each request's own text, and not those of the draft.

A lookup finds the earlier place that agrees with the latest ``m`` tokens, the match, and drafts what follows there (see
``sglang_adaptive.lookups.lookup``). How many of them are right is learnt by the match at the start of a round:

    S(r | m) = (rounds with r or more right + PRIOR * (m - 1) / (m + r - 1)) / (rounds + PRIOR)
    Y_k(m) = 1 + S(1 | m) + ... + S(k | m)                         tokens of a round of k drafts

``(m - 1) / (m + r - 1)`` is what it comes to where the next token agrees with a chance of ``(m - 1) / m`` after any m
that did. Recorded edits and tool calls of two models are close to that: 0.44 to 0.46 at 2, 0.76 at 4, 0.84 to 0.89 at 8
and 0.99 from 64 on. Every round shows how far its tokens agree, whoever drafted them, so this is learnt before a lookup
is ever verified.

A round of k lookups is taken where the requests' Y_k over its time promises more than the live steps do. A draft model
copies better than it writes: how many of its drafts are right in copied text is counted apart. What rounds of lookups
lose against the live steps they have to promise again; they are in no other account.
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
"""Drafts of the two kinds of rounds: with the last token 16 and 32 rows of a request, which graphs are captured for."""
REQUESTS = 4
"""The most requests of such a round. All get as many rows as the one that copies, so they pay at small batches."""
SHORTEST, LONGEST = 2, 64
"""Least match, and the match up to which tokens are compared."""
LEVELS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Matches from which on trials are counted together."""
PRIOR = 16.0
"""Rounds that the formula weighs as, at each level, and tokens that a factor of 1 does in ``copying``."""
MEMORY = 512.0
"""Rounds of a level, and tokens of copied text, after which they count half: texts change."""
FURTHEST = DRAFTS[-1]
"""Tokens of agreement that are told apart."""
RUN = 8
"""Match from which on text is taken to be copied."""
MARGIN = 0.03
"""Gain that lookups must promise: a switch there and back costs about as much of a short run."""
MARGIN_PER_LOST = 0.2
"""Gain that they must promise beyond that, for each round of the live steps that they have lost lately: with 0.1 a
mixture of experts is served at 0.992 and not 0.998 of the policy without lookups (simulated)."""
FOLLOWING_SECONDS = 1e-4
"""What it takes of the host to follow texts for a round: 5 to 7% of SmolLM2's rounds of 1.3 to 1.6 ms on an H100. No
round's time shows it apart, so lookups have to earn it."""
EARNED = 0.5
"""Of the time that a round of lookups saves, what may be spent on following texts."""
PATIENCE, MOST_EARNED = 32, 512
"""Rounds that are followed at first, and the most that are left after lookups have earned some."""
REST, MOST_REST, LOOK = 26, 104, 6
"""Once none are left, the rounds of the first rest; those of a rest after looks that earned nothing, twice as many each
time; and those of a look. The first two rounds of a look bring what the device has missed."""
_LEVEL = [bisect_right(LEVELS, match) - 1 for match in range(LONGEST + 1)]
"""Level by match; -1 below SHORTEST."""


class Agreement:
    """How far texts agree from the start of a round on, by the level of the match at its start."""

    def __init__(self) -> None:
        self._reached = [[PRIOR * (m - 1.0) / (m + r - 1.0) for r in range(FURTHEST + 1)] for m in LEVELS]
        """By level and tokens, the rounds from whose start so many tokens agreed or more; by 0 tokens, all. PRIOR of
        them are only assumed, and forgotten as the others are."""
        self._sums: list[list[float] | None] = [None] * len(LEVELS)
        """By level, the sums of these; None where something was learnt since."""

    def learn(self, match: int, agreed: int) -> None:
        """Take in that *agreed* tokens, FURTHEST at most, agreed from the start of a round on."""
        level = _LEVEL[min(match, LONGEST)]
        reached, self._sums[level] = self._reached[level], None
        for tokens in range(agreed + 1):
            reached[tokens] += 1.0
        if reached[0] > MEMORY:
            reached[:] = [0.5 * count for count in reached]

    def chance(self, match: int, tokens: int) -> float:
        """Return S(*tokens* | *match*), of more than FURTHEST as of these; 0 where nothing was found."""
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
        """Return level by level the rounds that were counted, and the mean tokens of FURTHEST drafts, as JSON."""
        levels = zip(LEVELS, self._reached, strict=True)
        return [{"match": at, "rounds": n[0], "tokens": self.tokens(at, (FURTHEST,))[0]} for at, n in levels]


class Runs:
    """Follows each request's copies over its rounds, until they break: a round alone shows no more than its own tokens.

    Rounds begin where drafts were wrong, and copies tend to break there too. So what is learnt is how far texts agree
    from the start of a round on, and of all tokens of a copy only those at which rounds have begun count.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._open: dict[Hashable, list[tuple[int, int]]] = {}
        """By request, match and tokens since of each start of a round in the copy that has not broken yet."""

    def learn(self, observation: RoundObservation) -> None:
        """Take in a round; copies of requests that are not in it are forgotten."""
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
    """Decides before a round whether to look its drafts up."""

    def __init__(self) -> None:
        self.agreement = Agreement()
        self._runs = Runs(self.agreement)
        self.behind = 0
        """Rounds whose results are under way when one is chosen: 1 with overlap scheduling."""
        self._matches: Sequence[int] = ()
        """Of each request at the start of the round after the latest one that was seen; empty where not followed."""
        self._left = float(PATIENCE)
        """Rounds to be followed before a rest; in one, the rounds of it that have passed, below zero."""
        self._rest = REST
        """Rounds of the next rest, or of that under way."""
        self._lost = 0.0
        """Rounds of the live steps lost lately by rounds of lookups, and not made up for."""
        self._copied = self._expected = 0.0
        """Tokens of drafted rounds in copied text, and what was expected of them as in any text."""

    @property
    def copying(self) -> float:
        """How many times as many tokens a drafted round yields in copied text."""
        return max(1.0, (self._copied + PRIOR) / (self._expected + PRIOR))

    @property
    def rests(self) -> bool:
        """Whether texts need not be followed in the coming round."""
        return self._left <= 0.0

    def learn(self, observation: RoundObservation, acceptance: AcceptanceEstimator) -> None:
        """Take in a round."""
        counts, steps = observation.num_correct_drafts_per_req, observation.steps
        self._matches = [found.now for found in observation.lookups]
        if len(counts) <= REQUESTS:  # more are never followed
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
        """Enter a round of lookups into their account, beside a round of the *live* steps."""
        counts, found = observation.num_correct_drafts_per_req, observation.lookups
        if live not in row.seconds or not counts or len(found) != len(counts):
            return
        expected = sum(self._drafted(one.match, live, acceptance) for one in found)
        loss = row.took[observation.shape] / row.seconds[live] - (sum(counts) + len(counts)) / expected
        self._lost = max(0.0, self._lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)
        if not self.rests:  # or the result came when a rest had begun
            earned = -EARNED * loss * row.seconds[live] / FOLLOWING_SECONDS
            self._left = min(max(self._left + earned, 0.0), float(MOST_EARNED))
            if earned > 0.0:
                self._rest = REST

    def _drafted(self, match: int, live: int, acceptance: AcceptanceEstimator) -> float:
        """Return the tokens of a request in a round of the *live* steps."""
        usual = acceptance.tokens[live]
        return min(live + 1.0, usual * self.copying) if match >= RUN else usual

    def chosen(
        self, batch_size: int, row: RoundTimeRow, live: int, before: int, acceptance: AcceptanceEstimator
    ) -> int:
        """Return the drafts to look up in the coming round, of those that *row* has; 0 where *live* steps promise more.

        *before* are the steps of the round before, lookups included, whose result may be under way.
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
        """Return what is believed, and the seconds of *row*, as JSON builtins."""
        seconds = {str(drafts): seconds for drafts, seconds in row.lookups.items()}
        return {"agreement": self.agreement.as_list(), "copying": self.copying, "seconds": seconds}
