"""When to verify drafts looked up in each request's own text, or in finished ones, instead of the draft model's.

A lookup finds the earlier place that agrees with the latest ``m`` tokens, the match, and drafts what follows there (see
``Lookup``). The number of correct drafts is learned by the match at the start of a round:

    S(r | m) = (rounds with r or more right + PRIOR * (m - 1) / (m + r - 1)) / (rounds + PRIOR)
    Y_k(m) = 1 + S(1 | m) + ... + S(k | m)                         tokens of a round of k drafts

``(m - 1) / (m + r - 1)`` is the probability if the next token agrees with probability ``(m - 1) / m`` after any m that
did. Recorded edits and tool calls of two models are close to that: 0.44 to 0.46 at 2, 0.76 at 4, 0.84 to 0.89 at 8 and
0.99 from 64 on. Every round shows how far its tokens agree, whatever drafted them, so this is learned before a lookup
is ever verified.

A draft model does better in copied text than elsewhere, so the tokens of a drafted round, D, are learned by match as
well. A round of k lookups is worth the mean of Y_k(m) / D(m) over the requests, in rounds of the live steps. A sum of
tokens would say too much for one request that copies: the others lose drafts, and their text is still to be written. A
lookup round runs if it is worth more per second than the live steps, and must promise more after lookup rounds have
lost. No other account includes them.

Tracking the texts costs host time in every round. It is measured, and lookups have to earn it.

All is learned apart for drafts from the own text and for those from finished texts, the memory, which is searched only
while lookup rounds accept tokens from it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from statistics import median

from sglang_adaptive.policy.choice import Choice, Coming, Source
from sglang_adaptive.policy.observation import SHORTEST, RoundObservation
from sglang_adaptive.policy.options import PolicyOptions
from sglang_adaptive.policy.throughput.acceptance import GAIN, AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import CONFIRMED
from sglang_adaptive.policy.throughput.readings import SIDE
from sglang_adaptive.policy.throughput.rows import RoundTimeRow

KINDS: Mapping[int, range] = {4: range(17, 33), 8: range(9, 17), 15: range(1, 9), 31: range(1, 5)}
"""Kinds of lookup rounds: by number of drafts, the batch sizes that have CUDA graphs. All requests get as many rows as
the one that copies, so larger batches get fewer: at most 160 in all."""
LEVELS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Shortest match of each level; trials of one level are counted together."""
PRIOR = 16.0
"""Weight of the formula at each level in rounds, and of the factor of the level below in drafted tokens."""
REMEMBERED = 512
"""Rounds and drafted tokens of a level after which counts are halved, because texts change."""
FURTHEST = max(KINDS)
"""Longest agreement that is distinguished, in tokens."""
MARGIN = 0.03
"""Least gain that lookups must promise. Without it four requests, one copying, are at worst at 1.03 instead of 1.11."""
MARGIN_PER_LOST = 0.5
"""Additional gain that they must promise per round of the live steps lost in the last REMEMBERED lookup rounds and not
regained. If rounds of any kind decay them, the worst of 87 cells with rounds of 2 ms is at 0.988 of the policy without
lookups instead of 0.990. With 0.2 a mixture of experts, whose lookup rounds are slow, has 0.986 of it at worst, with
0.5 0.990 (simulated)."""
TRACKING_SECONDS = 1e-4
"""Host time to track texts, per round, as assumed at first (an H200's host takes 0.07 to 0.13 ms)."""
LEAST_TRACKING = 0.1 * TRACKING_SECONDS
"""Seconds that tracking is assumed to take at least, because comparisons scatter."""
EARNED = 0.25
"""Share of the time saved by a lookup round that may be spent on tracking texts, for up to REMEMBERED rounds. With 0.5
chat of rounds of 2 ms, 0.3 of them for tracking, has at worst 0.987 instead of 0.995 of the policy without lookups."""
LOOK, REST = 6, 26
"""Rounds of a look, and of the first rest after lookups have paid for one; at the start, a rest is as short as a look.
A rest doubles after each look that earned nothing. In the first two rounds of a look the device catches up. If all are
the longest, edits of whole files are served at 7.0 instead of 7.3 times the best depth (simulated)."""
MOST_REST = 4 * REST  # rounds of the longest rest, unless LOOKING asks for more
LOOKING = 0.003
"""Share of the time that looks may take where nothing is copied; the longest rest is longer where they take more. After
the first look, all rests are the longest until lookups have paid for a look. With rounds of 1.4 ms and 0.1 ms of
tracking, the worst of 30 cells of SmolLM2's answers is at 0.990 of the policy without lookups over 1,000 rounds; with
0.005 and short rests at first it is at 0.989, and over 200 rounds at 0.962 instead of 0.977 (simulated)."""
MEMORY_LOOK, MEMORY_REST = REMEMBERED // 2, 2 * REMEMBERED
"""Tracked rounds after which finished texts are left out, and those until they are searched again."""
BROUGHT = 0.02
"""Accepted tokens of finished texts per request and round that keep them."""
LEAST_SECONDS = 0.004
"""Shortest rounds for which ``"auto"`` looks up. Chat was served at 1.03 to 1.14 of the policy without lookups where
rounds take 7 ms, and at 0.88 to 0.99 where a busy host paces rounds of 1.8 to 3.5 ms."""


def _level(match: int) -> int:
    """Return the level of a match; -1 below SHORTEST."""
    return bisect_right(LEVELS, match) - 1


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
        level = _level(match)
        reached, self._sums[level] = self._reached[level], None
        for tokens in range(agreed + 1):
            reached[tokens] += 1.0
        if reached[0] > REMEMBERED:
            reached[:] = [0.5 * count for count in reached]

    def chance(self, match: int, tokens: int) -> float:
        """Return S(*tokens* | *match*), with *tokens* limited to FURTHEST; 0 if nothing was found."""
        if match < SHORTEST:
            return 0.0
        reached = self._reached[_level(match)]
        return reached[min(tokens, FURTHEST)] / reached[0]

    def tokens(self, match: int, drafts: Sequence[int]) -> list[float]:
        """Return Y_k(*match*) for each k of *drafts*."""
        if match < SHORTEST:
            return [1.0] * len(drafts)
        level = _level(match)
        sums = self._sums[level]
        if sums is None:
            sums = self._sums[level] = list(accumulate(self._reached[level]))
        return [sums[count] / sums[0] for count in drafts]


class Runs:
    """Tracks each request's copies over several rounds until they break, because a round shows only its own tokens.

    Rounds begin where drafts were wrong, and copies tend to break there too. So agreement is learned only from the
    tokens of a copy at which a round began.
    """

    def __init__(self, *agreements: Agreement) -> None:
        """*agreements* are with the own text and with memory."""
        self._agreements = agreements
        self._open: dict[Hashable, list[tuple[int, int, int]]] = {}
        """By request, of each round start in the current copy: whether it is of memory, match and tokens so far."""

    def learn(self, observation: RoundObservation) -> None:
        """Learn from a round; copies of requests that are not in it are forgotten."""
        names = observation.requests or range(len(observation.lookups))
        before, self._open = self._open, {}
        for name, count, found in zip(names, observation.num_correct_drafts_per_req, observation.lookups, strict=False):
            begun = before.get(name, [])
            if found.match >= SHORTEST:
                begun.append((found.remembered, found.match, 0))
            broke = found.agreed < min(count + 1, FURTHEST)
            kept = []
            for remembered, match, since in begun:
                agreed = min(since + (found.agreed if broke else count + 1), FURTHEST)
                if broke or agreed == FURTHEST:
                    self._agreements[remembered].learn(match, agreed)
                else:
                    kept.append((remembered, match, agreed))
            if kept:
                self._open[name] = kept


class Drafted:
    """How many tokens a drafted round yields after a match, relative to all drafted rounds.

    A draft model does better where text is copied, and best where it repeats itself. The factor of a level starts from
    that of the level below.
    """

    def __init__(self) -> None:
        self._tokens, self._expected = [0.0] * (len(LEVELS) + 1), [0.0] * (len(LEVELS) + 1)
        """By level, the last without a match: tokens, and those expected of all drafted rounds."""
        self._factors: list[float] | None = None
        """By level; None if outdated."""

    def learn(self, match: int, tokens: int, expected: float) -> None:
        """Count a request's *tokens* in a drafted round that yields *expected* tokens on average."""
        level = _level(match)
        self._tokens[level] += tokens
        self._expected[level] += expected
        if self._expected[level] > REMEMBERED:
            self._tokens[level] *= 0.5
            self._expected[level] *= 0.5
        self._factors = None

    def tokens(self, match: int, steps: int, usual: float) -> float:
        """Return the expected tokens of a round of *steps* after *match*; *usual* are those of all such rounds."""
        return min(steps + 1.0, max(1.0, usual * self._by_level()[_level(match)]))

    def _by_level(self) -> list[float]:
        if self._factors is None:
            factor, found = 1.0, []
            for level in range(-1, len(LEVELS)):
                factor = (self._tokens[level] + PRIOR * factor) / (self._expected[level] + PRIOR)
                found.append(factor)
            self._factors = [*found[1:], found[0]]
        return self._factors


class Tracking:
    """The time that tracking texts adds to a round; lookups must earn it.

    It is learned where tracking starts and ends: the median of the rounds right after, against that of the rounds right
    before. So a clock or a context that changes does not matter. Clocks differ between ranks, so decisions use the time
    of rank 0.
    """

    def __init__(self) -> None:
        self.seconds = self._own = TRACKING_SECONDS
        """Seconds per round: of rank 0, and as measured here."""
        self.tracked = False
        """Whether the latest round was tracked."""
        self._place: tuple[int, int] | None = None
        """Anchor batch size and steps of the compared rounds."""
        self._before: Sequence[float] = ()
        self._after: deque[float] = deque(maxlen=SIDE)
        """Their seconds, before and after the latest start or end."""

    def export(self) -> float:
        """Return the seconds that this rank measured, for ``seconds`` of each rank."""
        return max(LEAST_TRACKING, self._own)

    def without(self, observation: RoundObservation) -> float | None:
        """Return the seconds of a round without tracking; None for a round that was not timed.

        Otherwise the depth that ran while texts were tracked would seem slow.
        """
        if observation.seconds is None or not observation.lookups:
            return observation.seconds
        return max(0.5 * observation.seconds, observation.seconds - self.seconds)

    def learn(self, anchor: int, observation: RoundObservation) -> None:
        """Learn from a round; lookup rounds and rounds that were not timed say nothing."""
        tracked = bool(observation.lookups)
        if tracked != self.tracked:
            self._compare()
            self._before, self._after, self.tracked = self._after, deque(maxlen=SIDE), tracked
        if observation.seconds is None or observation.looked_up:
            return
        if (place := (anchor, observation.steps)) != self._place:
            self._before, self._after, self._place = (), deque(maxlen=SIDE), place
        self._after.append(observation.seconds)
        if len(self._after) == SIDE:
            self._compare()

    def _compare(self) -> None:
        """Count the difference between both sides, once, if both have enough readings."""
        if min(len(self._before), len(self._after)) >= CONFIRMED:
            more = median(self._after) - median(self._before)
            self._own += GAIN * ((more if self.tracked else -more) - self._own)
        self._before = ()


class Lookups:
    """Decides before each round whether to look its drafts up."""

    def __init__(self, options: PolicyOptions) -> None:
        self.options = options
        self.agreements = Agreement(), Agreement()
        """With the own text, and with memory."""
        self._runs = Runs(*self.agreements)
        self.tracking = Tracking()
        self.behind = 0
        """Rounds in flight when one is chosen: 1 with overlap scheduling."""
        self._matches: Mapping[Hashable, tuple[int, int]] = {}
        """By request, the match at the start of the round after the latest observed one, and whether it is of memory;
        empty if not tracked."""
        self._left = 0.0
        """Rounds to track before a rest; in a rest, its past rounds as a negative number."""
        self._rest: float = LOOK
        """Rounds of the current or next rest, if the longest one is longer."""
        self._slow = False
        """Whether rounds take long enough."""
        self._paid = False
        """Whether lookups have ever earned more than a look."""
        self._lost = 0.0
        """Rounds of the live steps lost by the last REMEMBERED lookup rounds and not regained."""
        self._drafted = Drafted(), Drafted()
        """Where the draft model is compared with the own text, and with memory."""
        self.brought = [0, 0], [0, 0]
        """Rounds of a request that verified drafts of the own text and the tokens accepted, and the same of memory."""
        self._memory_left = MEMORY_LOOK
        """Tracked rounds until memory is left out; in a rest, its past rounds as a negative number."""
        self._memory_kept = 0.0
        """Tokens accepted from memory, less those that keep it, since then."""

    @property
    def searches_memory(self) -> bool:
        """Whether finished texts are searched in the coming round."""
        return self.options.lookup_memory_mb > 0 and self._memory_left > 0

    @property
    def rests(self) -> bool:
        """Whether texts need no tracking in the coming round."""
        return self._left <= 0.0

    def expect_copies(self) -> None:
        """End a rest: a request joined whose prompt was seen before."""
        if self.rests and self._slow:
            self._left = float(LOOK)

    def learn(
        self, observation: RoundObservation, row: RoundTimeRow, live: int, acceptance: AcceptanceEstimator
    ) -> None:
        """Learn from a round; *row* has the times of its batch size, *live* are the steps of rounds without lookups."""
        self._slow = self.options.lookup != "auto" or row.seconds.get(live, 0.0) >= LEAST_SECONDS
        if self._slow or observation.lookups or self.tracking.tracked:
            self.tracking.learn(row.anchor, observation)
        if not self._slow:
            self._left = 0.0
        elif row.lookups:  # other batches are never tracked
            self._left -= 1.0
            longest = LOOK * self.tracking.seconds / (LOOKING * row.seconds.get(live, math.inf))
            rest = min(self._rest, max(longest, MOST_REST))
            if self._left <= -rest:
                self._left, self._rest = float(LOOK), 2.0 * rest if self._paid else math.inf
        self._runs.learn(observation)
        if not observation.lookups:
            self._matches = {}
            return
        counts, steps = observation.num_correct_drafts_per_req, observation.steps
        lookups = zip(observation.requests or range(len(counts)), observation.lookups, strict=False)
        self._matches = {name: (found.now, found.next_remembered) for name, found in lookups}
        self._account(observation)
        if steps and not observation.looked_up:
            usual = acceptance.tokens[min(steps, acceptance.depth)]
            for count, found in zip(counts, observation.lookups, strict=False):
                self._drafted[found.remembered].learn(found.match, count + 1, usual)

    def _account(self, observation: RoundObservation) -> None:
        """Count what a tracked round accepted, and decide whether memory is searched."""
        for count, found in zip(observation.num_correct_drafts_per_req, observation.lookups, strict=False):
            if observation.looked_up and found.match:
                self.brought[found.remembered][0] += 1
                self.brought[found.remembered][1] += count
                self._memory_kept += count * found.remembered
            self._memory_kept -= BROUGHT
        self._memory_left -= self.options.lookup_memory_mb > 0
        if self._memory_left in (0, -MEMORY_REST):
            rests = self._memory_left == 0 and self._memory_kept < 0.0
            self._memory_left, self._memory_kept = 0 if rests else MEMORY_LOOK, 0.0

    def book(
        self, observation: RoundObservation, row: RoundTimeRow, live: int, acceptance: AcceptanceEstimator
    ) -> None:
        """Add the loss or gain of a lookup round against a round of the *live* steps."""
        counts, found = observation.num_correct_drafts_per_req, observation.lookups
        if live not in row.seconds or not counts or len(found) != len(counts):
            return
        usual = acceptance.tokens[live]
        worth = sum(
            (count + 1) / self._drafted[one.remembered].tokens(one.match, live, usual)
            for count, one in zip(counts, found, strict=True)
        )
        loss = row.lookups[observation.steps] / row.seconds[live] - worth / len(counts)
        self._lost = max(0.0, self._lost * (1.0 - 1.0 / REMEMBERED) + loss)
        earned = -EARNED * loss * row.seconds[live] / self.tracking.seconds
        if self._left > -1.0 - self.behind:  # the round began before a rest
            self._left = min(max(self._left + earned, 0.0), REMEMBERED)
            if self._left > LOOK:
                self._paid, self._rest = True, REST

    def chosen(
        self, coming: Coming, row: RoundTimeRow, live: int, before: Choice, acceptance: AcceptanceEstimator
    ) -> int:
        """Return the drafts to look up in the coming round, out of those in *row*; 0 if *live* steps promise more.

        The result of *before*, the previous round, may still be in flight. Requests that are not named are those of the
        latest observed round.
        """
        if not self._matches:
            return 0
        matches = [self._matches.get(name, (0, 0)) for name in coming.requests or self._matches]
        if len(matches) != coming.batch_size or max(matches)[0] < SHORTEST:
            return 0
        kinds, worth = tuple(row.lookups), [0.0] * len(row.lookups)
        usual = acceptance.tokens[live]
        elsewhere = self._drafted[0].tokens(0, live, usual)
        for match, remembered in matches:
            lasts, agreement, model = 1.0, self.agreements[remembered], self._drafted[remembered]
            if self.behind and match >= SHORTEST:
                copied = before.source is Source.LOOKUP
                passed = before.steps + 1 if copied else round(model.tokens(match, before.steps, usual))
                lasts, match = agreement.chance(match, passed), match + passed
            drafted = lasts * model.tokens(match, live, usual) + (1.0 - lasts) * elsewhere
            for at, tokens in enumerate(agreement.tokens(match, kinds)):
                worth[at] += (lasts * tokens + 1.0 - lasts) / drafted
        gains = [found / row.lookups[drafts] for drafts, found in zip(kinds, worth, strict=True)]
        best = max(range(len(kinds)), key=gains.__getitem__)
        asked = 1.0 + MARGIN + MARGIN_PER_LOST * self._lost
        return kinds[best] if gains[best] * row.seconds[live] > asked * len(matches) else 0

    def as_dict(self, row: RoundTimeRow, kinds: Mapping[int, range]) -> dict[str, object]:
        """Return *kinds*, the estimates and the seconds of *row*, as JSON builtins."""
        own, memory = ({"rounds": rounds, "tokens": tokens} for rounds, tokens in self.brought)
        return {
            "requests": {str(drafts): [sizes[0], sizes[-1]] for drafts, sizes in kinds.items()},
            "own_text": own,
            "memory": memory if self.options.lookup_memory_mb > 0 else None,
            "seconds": {str(drafts): seconds for drafts, seconds in row.lookups.items()},
            "tracking_seconds": self.tracking.seconds,
        }
