"""Random sequences of scheduler events, drawn by hypothesis, which shrinks a failing sequence to the shortest.

``python -m tests.campaign.machine FOLDER SEED EXAMPLES`` prints what was tried as JSON, and the sequence that failed.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import hypothesis
import psutil
from hypothesis import strategies as draw
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from sglang_adaptive.policy.choice import drafted
from tests.campaign.turns import MOST_TOKENS, Prompt, References, Turns, prompts
from tests.engine.stepping import TIERS, Stepper, no_memory

RULES_AN_EXAMPLE = 60
FEW = 5
"""Up to this many sequences, references are made only as needed, at the end."""
MOST_LIVE = 7
"""Requests at once; the scheduler runs eight and queues more."""
TIER_SETS: list[list[int]] = [[0], [1], [7], [0, 1], [1, 3], [0, 7], [0, 1, 3, 7]]
PLACES = draw.integers(0, 9)
"""Index of a prompt in the list, or of a request among the candidates."""
TOKENS = draw.sampled_from((1, 2, 5, 17, 40, MOST_TOKENS))
STOPS = draw.sampled_from(([], list(b"et"), list(b"aeiou ,")))
"""Tokens that end a request."""
THEN = draw.sampled_from((1, 0, 2, 5, 9))
"""Turns after an event."""
JUMPY = {"ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
CONFIGS: list[dict[str, Any]] = [
    *({"policy": "ema", "1": JUMPY | {"candidate_steps": tiers}} for tiers in TIER_SETS),
    {"1": JUMPY | {"candidate_steps": [7]}, "2": JUMPY | {"candidate_steps": [0]}, "3": {"candidate_steps": [1, 3]}},
    *({"policy": "throughput", "throughput": {"candidate_steps": tiers}} for tiers in TIER_SETS[1:]),
    {"throughput": {"candidate_steps": TIERS, "sync_rounds": 1, "probe_budget": 0.2}},
]
RAISES = RuntimeError("raised by the campaign")
DEPTHS: list[Any] = [5, -1, 10**9, None, "7", 1.5, float("nan")]
NONSENSE: list[Any] = [5, *map(drafted, DEPTHS), RAISES]
METHODS = ("choose", "observe", "snapshot", "prices", "export_cost", "import_cost", "forecast")
"""What of a policy is spoilt; of any but the first the answer is not used as a depth, and it raises."""


class Scheduler(RuleBasedStateMachine):
    """SGLang's scheduler and worker with the shipped pair and the package's controller.

    A policy measures real times, so a repeated sequence may differ. Hypothesis requires the same draws each time: no
    draw depends on the state, and a rule that does not apply does nothing.
    """

    lab: ClassVar[Stepper]
    references: ClassVar[References]
    prompts: ClassVar[list[Prompt]]
    tried: ClassVar[Counter[str]] = Counter()
    broken: ClassVar[list[str]] = []
    """Failures of every sequence that failed, the first one first: a broken loop may not break again."""

    @initialize(every=draw.integers(1, 33), overlap=draw.booleans(), first=draw.lists(PLACES, min_size=1, max_size=4))
    def begin(self, every: int, overlap: bool, first: list[int]) -> None:
        self.turns = Turns(self.lab, self.references, every=every, overlap=overlap)
        for place in first:
            self.turns.ask(self.prompts[place], MOST_TOKENS)

    @rule(place=PLACES, tokens=TOKENS, stops=STOPS, then=THEN)
    def ask(self, place: int, tokens: int, stops: list[int], then: int) -> None:
        if len(self.turns.live()) < MOST_LIVE:
            self.turns.ask(self.prompts[place], tokens, stops)
            self.turns.turn(then)

    @rule(place=PLACES, tokens=TOKENS)
    def ask_on(self, place: int, tokens: int) -> None:
        """Send a further turn: an earlier request's prompt and answer, and a little more."""
        rid = _of(self.turns.ended(), place)
        if rid is None or len(self.turns.live()) >= MOST_LIVE:
            return
        text = (*self.turns.prompts[rid], *self.lab.reqs[rid].output_ids, *self.prompts[0][:3])
        if len(text) < 300:
            self.turns.ask(text, tokens)

    @rule(count=draw.integers(1, 12))
    def turn(self, count: int) -> None:
        if self.turns.live():
            self.turns.turn(count)

    @rule(steps=draw.sampled_from([*TIERS, None]), then=THEN)
    def force(self, steps: int | None, then: int) -> None:
        self.turns.force(steps)
        self.turns.turn(then)
        self.turns.tried["force"] += 1

    @rule(steps=draw.lists(draw.sampled_from(TIERS), min_size=2, max_size=12))
    def switch_each_turn(self, steps: list[int]) -> None:
        for one in steps if self.turns.live() else ():
            self.turns.force(one)
            self.turns.turn()

    @rule(place=PLACES)
    def abort(self, place: int) -> None:
        rid = _of(self.turns.live(), place)
        if rid is not None:
            self.turns.abort(rid)

    @rule()
    def retract(self) -> None:
        """Let the scheduler retract a running request, which comes back through a new prefill.

        SGLang never retracts the only running request.
        """
        if not self.turns.live():
            return
        before = self.lab.retractions()
        with no_memory():
            self.turns.turn()
        self.turns.tried["retraction"] += self.lab.retractions() - before

    @rule()
    def flush(self) -> None:
        """Flush the cache, which SGLang does only when nothing runs."""
        with mock.patch("logging.warning"):
            self.turns.tried["cache flush"] += self.lab.scheduler.flush_cache()

    @rule(every=draw.integers(1, 33))
    def extend_every(self, every: int) -> None:
        self.lab.deferred.set_every(every)

    @rule(config=draw.sampled_from(CONFIGS), then=THEN)
    def configure(self, config: dict[str, Any], then: int) -> None:
        self._configure(config)
        self.turns.turn(then)
        self.turns.tried["configuration"] += 1

    def _configure(self, config: dict[str, Any]) -> None:
        from sglang_adaptive.sglang_plugin.admin.handlers import Change, Reconfigure

        handler, change = Reconfigure(self.lab.round), Change(config, "adaptive_config", "the campaign")
        handler.validate("adaptive_config", change)
        handler.apply("adaptive_config", change)

    @rule(answer=draw.sampled_from(NONSENSE), method=draw.sampled_from(METHODS), calls=draw.integers(0, 9))
    def spoil(self, answer: Any, method: str, calls: int) -> None:
        """Let the policy raise or return nonsense after some calls, until it is replaced."""
        _spoil(self.lab.controller.policy, method, answer if method == METHODS[0] else RAISES, calls)
        self.turns.tried["spoilt policy"] += 1

    def teardown(self) -> None:
        if not hasattr(self, "turns"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.turns.close()
            else:
                self._note(sys.exc_info()[1])
        except BaseException as error:
            self._note(error)
            raise
        finally:
            self.turns.give_up()
            self.tried.update(self.turns.tried)
            self.tried["sequence"] += 1
            self.lab.controller.force_steps(None)
            self._configure(CONFIGS[6])
            self.lab.deferred.set_every(8)

    def _note(self, error: BaseException | None) -> None:
        """Record a failure, unless hypothesis itself ends the sequence."""
        if isinstance(error, Exception) and not isinstance(error, hypothesis.errors.HypothesisException):
            self.broken.append(repr(error))
            print(f"broken: {error!r}", file=sys.stderr, flush=True)


def _of(rids: list[str], place: int) -> str | None:
    return rids[place % len(rids)] if rids else None


def _spoil(policy: Any, method: str, answer: Any, rounds: int) -> None:
    """Let *method* of *policy* raise or return *answer* after *rounds* calls."""
    sound, left = getattr(policy, method, None), iter(range(rounds))
    if sound is None:
        return

    def spoilt(*args: Any, **how: Any) -> Any:
        if next(left, None) is not None:
            return sound(*args, **how)
        if isinstance(answer, Exception):
            raise answer
        return answer

    setattr(policy, method, spoilt)


def main(folder: str, seed: str, examples: str) -> int:
    """Run *examples* sequences of *seed*; print the counts and, after a failure, the shortest failing sequence."""
    os.environ |= {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
    lab = Stepper(Path(folder))
    Scheduler.lab, Scheduler.references, Scheduler.prompts = lab, References(lab), prompts(lab)
    for prompt in Scheduler.prompts if int(examples) > FEW else ():
        Scheduler.references.of(prompt)  # known in advance, so that a wrong token is detected in its round
    settings = hypothesis.settings(
        max_examples=int(examples), stateful_step_count=RULES_AN_EXAMPLE, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), print_blob=False,
    )  # fmt: skip
    memory, failure, said = psutil.Process().memory_info().rss, "", io.StringIO()
    try:
        with redirect_stdout(said):
            run_state_machine_as_test(hypothesis.seed(int(seed))(Scheduler), settings=settings)
    except BaseException as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        first = "".join(Scheduler.broken[:1])
        failure = "\n".join([first, repr(error), notes, said.getvalue(), traceback.format_exc()[-3000:]])
    grown = (psutil.Process().memory_info().rss - memory) / 1e6
    print(json.dumps({"tried": dict(Scheduler.tried), "grown_mb": round(grown, 1), "failure": failure}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
