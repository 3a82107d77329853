"""When to verify drafts that are looked up in each request's own text, and not those of the draft.

A lookup finds the earlier place that agrees with the latest ``m`` tokens, the match, and drafts what follows there (see
``sglang_adaptive.lookups.lookup``). If the next token agrees as well, ``m + 1`` tokens do. So one curve says all:

    p(m) = (hits + PRIOR * (m - 1) / m) / (trials + PRIOR)      chance that a token agrees after m that did
    Y_k(m) = 1 + p(m) + p(m) p(m+1) + ... + p(m)...p(m+k-1)     tokens of a round of k drafts

Every round shows how far its tokens agree, whoever drafted them, so the curve is learnt before a lookup is ever
verified. ``(m - 1) / m`` is close to what recorded edits and tool calls of two models show, 0.44 to 0.46 at 2, 0.76 at
4, 0.84 to 0.89 at 8 and 0.99 from 64 on.

A round of k lookups is taken where the requests' Y_k over its time promises more than the live steps do. A draft model
copies better than it writes: how many of its drafts are right in copied text is counted apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
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
"""Trials that ``(m - 1) / m`` weighs as, at each level."""
MEMORY = 2048.0
"""Trials of a level after which they count half: texts change."""
RUN = 8
"""Match from which on text is taken to be copied."""
MARGIN = 0.03
"""Gain that lookups must promise: a switch there and back costs about as much of a short run."""
PATIENCE, REST, LOOK = 32, 26, 6
"""Rounds without copied text until texts are followed no more; then the rounds of a rest, and those of a look. To
follow them takes 0.1 ms of a host's time: 5 to 7% of SmolLM2's rounds of 1.3 to 1.6 ms on an H100, 1% of them with
rests. The first two rounds of a look bring what the device has missed."""
_LEVEL = [bisect_right(LEVELS, match) - 1 for match in range(LONGEST + 1)]
"""Level by match; -1 below SHORTEST."""


class Agreement:
    """How likely the next token agrees after so many that did."""

    def __init__(self) -> None:
        self._hits, self._trials = [0.0] * len(LEVELS), [0.0] * len(LEVELS)

    def learn(self, match: int, agreed: int, broke: bool) -> None:
        """Take in that after *match* tokens *agreed* more did, and whether the next one *broke* the run."""
        if match < SHORTEST:
            return
        for at in range(match, match + agreed + broke):
            level = _LEVEL[min(at, LONGEST)]
            self._trials[level] += 1.0
            self._hits[level] += at < match + agreed
            if self._trials[level] > MEMORY:
                self._trials[level] *= 0.5
                self._hits[level] *= 0.5

    def chance(self, match: int) -> float:
        """Return p(*match*); 0 where nothing was found."""
        if match < SHORTEST:
            return 0.0
        match = min(match, LONGEST)
        level = _LEVEL[match]
        return (self._hits[level] + PRIOR * (match - 1.0) / match) / (self._trials[level] + PRIOR)

    def lasts(self, match: int, tokens: int) -> float:
        """Return the chance that *tokens* more agree."""
        reach = 1.0
        for at in range(match, match + tokens):
            reach *= self.chance(at)
        return reach

    def tokens(self, match: int, drafts: Sequence[int]) -> list[float]:
        """Return Y_k(*match*) for each k of *drafts*, ascending."""
        found, total, reach, done = [], 1.0, 1.0, 0
        for count in drafts:
            for at in range(match + done, match + count):
                reach *= self.chance(at)
                total += reach
            done = count
            found.append(total)
        return found

    def as_list(self) -> list[dict[str, float]]:
        """Return level by level what was counted and what is believed, as JSON builtins."""
        counted = zip(LEVELS, self._trials, self._hits, strict=True)
        return [{"match": level, "trials": n, "hits": hits, "chance": self.chance(level)} for level, n, hits in counted]


class Lookups:
    """Decides before a round whether to look its drafts up."""

    def __init__(self) -> None:
        self.agreement = Agreement()
        self.behind = 0
        """Rounds whose results are under way when one is chosen: 1 with overlap scheduling."""
        self._matches: Sequence[int] = ()
        """Of each request at the start of the round after the latest one that was seen; empty where not followed."""
        self._idle = 0
        """Rounds since text was copied, as far as texts were followed; with rests, counted on in a circle."""
        self._copied = self._expected = 0.0
        """Tokens of drafted rounds in copied text, and what was expected of them as in any text."""

    @property
    def copying(self) -> float:
        """How many times as many tokens a drafted round yields in copied text."""
        return max(1.0, (self._copied + PRIOR) / (self._expected + PRIOR))

    @property
    def rests(self) -> bool:
        """Whether texts need not be followed in the coming round."""
        return PATIENCE <= self._idle < PATIENCE + REST

    def learn(self, observation: RoundObservation, acceptance: AcceptanceEstimator) -> None:
        """Take in a round."""
        counts, steps = observation.num_correct_drafts_per_req, observation.steps
        self._matches = [found.now for found in observation.lookups]
        self._idle = 0 if max(self._matches, default=0) >= RUN else self._idle + 1
        if self._idle >= PATIENCE + REST + LOOK:
            self._idle = PATIENCE
        for count, found in zip(counts, observation.lookups, strict=False):
            self.agreement.learn(found.match, found.agreed, found.agreed < min(count + 1, DRAFTS[-1]))
            if found.match >= RUN and steps and not observation.looked_up:
                self._copied += count + 1
                self._expected += acceptance.tokens[min(steps, acceptance.depth)]
                if self._expected > MEMORY:
                    self._copied *= 0.5
                    self._expected *= 0.5

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
        usual = acceptance.tokens[live]
        copied = min(live + 1.0, usual * self.copying)
        for match in self._matches:
            lasts = 1.0
            if self.behind and match >= SHORTEST:
                passed = before + 1 if before in row.lookups else max(1, round(min(before + 1.0, self.copying * usual)))
                lasts, match = self.agreement.lasts(match, passed), match + passed
            for kind, tokens in enumerate(self.agreement.tokens(match, kinds)):
                looked_up[kind] += lasts * tokens + (1.0 - lasts)
            drafted += usual + lasts * (copied - usual) if match >= RUN else usual
        rates = [tokens / row.lookups[drafts] for drafts, tokens in zip(kinds, looked_up, strict=True)]
        best = max(range(len(kinds)), key=rates.__getitem__)
        return kinds[best] if rates[best] > (1.0 + MARGIN) * drafted / row.seconds[live] else 0

    def as_dict(self) -> dict[str, object]:
        """Return what is believed, as JSON builtins."""
        return {"agreement": self.agreement.as_list(), "copying": self.copying}
