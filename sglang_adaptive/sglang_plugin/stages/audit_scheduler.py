"""The scheduler's part of the audit: keep a few finished requests, rerun them at zero steps, and count verdicts.

While the scheduler is idle, the HTTP server takes one, requests its text again, compares, and sends back the verdict
(``audit_http.py``). The ids of its requests begin with AUDITED. A batch of only these requests runs at zero steps; its
rounds are not counted and teach the policy nothing. The requests are aborted as soon as a round also has a user's
request.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive import ties
from sglang_adaptive.policy.config import AdaptiveConfig, AuditOptions
from sglang_adaptive.policy.errors import printable
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import features, ranks
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

AUDITED = "sglang-adaptive audit "
"""Id prefix of a request that is decoded again."""
TAKE = "sglang-adaptive audit"
"""Id of an internal-state request that takes out a finished request."""
REPORT_KEY = "adaptive_audit"

UNFINISHED = "unfinished"
VERDICTS = (ties.EQUAL, ties.TIE, ties.WRONG, UNFINISHED)
"""The last is for requests that were chosen but not compared: users came, the server was never idle, or it refused."""

MOST_WAITING = 8
MOST_TOKENS = 1 << 15
"""Of prompt and output together; longer requests are not chosen."""
COMPARED = 1024
"""Number of output tokens that are decoded again, from the first one."""

_MORE_THAN_TOKENS = ("json_schema", "regex", "ebnf", "structural_tag", "custom_params", "watermark")
"""Sampling parameters that exclude a request."""
_ON_REQUESTS = ("grammar", "custom_logit_processor", "lora_id", "session", "multimodal_inputs", "input_embeds")


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict on one finished request, without its text."""

    replica: int
    epoch: int
    """Weight updates before the request was taken out."""
    request: str
    """Its id."""
    verdict: str
    """One of VERDICTS."""
    noise: float = 0.0
    """Largest difference between answers at zero steps so far, in nats."""
    at: int = 0
    """Number of tokens before the first difference."""
    gap: float | None = None
    """Nats by which the zero-step token is likelier; None if the texts are equal or one ends there."""

    def __post_init__(self) -> None:
        """Raise TypeError for what another client has put together."""
        whole = all(isinstance(number, int) for number in (self.replica, self.epoch, self.at))
        nats = all(isinstance(number, int | float) for number in (self.noise, self.gap or 0.0))
        if not (whole and nats and isinstance(self.request, str) and self.verdict in VERDICTS):
            raise TypeError

    def words(self) -> str:
        """Return the finding as a phrase."""
        how = "one text ends there" if self.gap is None else f"{self.gap:.3g} nats less likely than that of zero steps"
        return f"token {self.at} of request {self.request}: {how}"


class Audits(Stage):
    """The audit of one scheduler's output."""

    def __init__(self, controller: AdaptiveController, options: AuditOptions | None) -> None:
        """*controller* reports the audit."""
        self.guard = Guard("audit")
        self._rounds = Guard("audit-room")
        self._controller = controller
        self._draw = random.Random()
        self._proved: dict[str, Any] | None = None
        """The wrong token that made the server step down."""
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)
        self._counts = dict.fromkeys(VERDICTS, 0)
        self._noise = 0.0
        self._size = 0
        """Requests of the latest round."""
        self._epoch = 0
        self._may_be_older = False
        """Whether running requests may have begun with the weights before the latest update."""
        self.change(options)

    def reconfigured(self, config: AdaptiveConfig) -> None:
        self.change(config.audit)

    def change(self, options: AuditOptions | None) -> None:
        """Audit with *options* from now on; None ends the audit. Earlier counts stay."""
        self._options, self._why_not = options, None
        self._proved = None
        self._waiting.clear()
        if options is not None:
            may = features.may("audit", Setup())
            self._why_not = None if may else features.reasons["audit"]
            self._controller.audits = self.report
        else:
            self._controller.audits = lambda: None

    @property
    def is_on(self) -> bool:
        """Whether finished requests are kept for the audit."""
        return self._options is not None and self._why_not is None and self._proved is None and not self.guard.closed

    def report(self) -> dict[str, Any]:
        """Return the findings as JSON builtins; docs/json.md lists the fields."""
        assert self._options is not None
        return {
            **asdict(self._options),
            **self._counts,
            "waiting": len(self._waiting),
            "tie_nats": ties.width(self._noise),
            "proved": self._proved,
            "reason": self._why_not or self.guard.error,
        }

    # -- finished requests ----------------------------------------------------------------------------------------

    def release(self, rest: Rest, req: Any, *args: Any, **kwargs: Any) -> None:
        """Free the KV slots of a request, then keep it for the audit if it gets chosen."""
        rest(req, *args, **kwargs)
        self.add(req)

    def add(self, req: Any) -> None:
        """Keep SGLang's *req* for the audit if it is finished and gets chosen."""
        if self.is_on:
            self.guard.attempt(self._add, req)

    def _add(self, req: Any) -> None:
        assert self._options is not None
        if not req.finished() or req.rid.startswith(AUDITED) or self._controller.warm_up.runs or self._may_be_older:
            return
        if self._draw.random() >= self._options.share or not ranks.is_first():
            return
        chosen = question(req)
        if chosen is None:
            return
        if len(self._waiting) == MOST_WAITING:  # drops the oldest
            self._counts[UNFINISHED] += 1
        self._waiting.append(chosen)

    def weights_changed(self) -> None:
        """Forget requests that were decoded with the old weights."""
        self._epoch += 1
        self._may_be_older = True
        self._waiting.clear()

    def take(self, is_idle: bool) -> dict[str, Any]:
        """Return whether the audit is on, and one finished request if the scheduler is idle."""
        if is_idle:
            self._may_be_older = False
        found = self._waiting.popleft() if is_idle and self.is_on and self._waiting else None
        return {"is_on": self.is_on, "finished": None if found is None else {**found, "epoch": self._epoch}}

    # -- decoded again --------------------------------------------------------------------------------------------

    def update_running_batch(self, rest: Rest, scheduler: Any, batch: Any) -> Any:
        """Run a round of only audited requests at zero steps; abort them if the prepared batch has others."""
        found = rest(scheduler, batch)
        if found is None:  # SGLang skips this round
            return None
        self._controller.audit_round = self.has_all(found.reqs)
        # A joining request nearly always changes the batch size; one that replaces another is found at the next change.
        if self._options is not None and len(found.reqs) != self._size:
            self._size = len(found.reqs)
            if not self._controller.audit_round:
                self._rounds.attempt(self._make_room, found.reqs)
        return found

    def arrived(self, note: RoundNote, result: Any, batch: Any) -> None:
        """Note whether the round counts."""
        note.audit = self.has_all(batch.reqs)

    def has_all(self, reqs: Sequence[Any]) -> bool:
        """Whether all of a round's *reqs* are decoded again for the audit."""
        # In nearly all other rounds, the first request decides.
        return self._options is not None and bool(reqs) and all(req.rid.startswith(AUDITED) for req in reqs)

    def _make_room(self, reqs: Sequence[Any]) -> None:
        audited = [req for req in reqs if req.rid.startswith(AUDITED)]
        if audited:
            from sglang.srt.managers.schedule_batch import FINISH_ABORT

            for req in audited:
                req.to_finish = FINISH_ABORT("the audit makes room for a request")

    def count(self, report: Report) -> None:
        """Count a verdict, and step down for a wrong token; every rank does so at the same round."""
        if self._options is None or self._proved is not None or report.epoch != self._epoch:
            return
        if report.replica == ranks.replica():
            self._counts[report.verdict] += 1
            self._noise = max(self._noise, report.noise)
        if report.verdict == ties.WRONG:
            about = {"request": report.request, "token": report.at, "gap_nats": report.gap}
            self._proved = {"time": time.time(), **about}
            self._waiting.clear()
            self._controller.step_down(f"the audit has found a wrong token, {report.words()}")


def question(req: Any) -> dict[str, Any] | None:
    """Return a finished request as token ids with parameters to decode it again; None if it is not audited.

    It is audited if it is greedy and its text depends only on its prompt, penalties, biases and stop tokens.
    """
    how = req.sampling_params
    if how.top_k != 1 or (how.beam_width or 1) > 1 or any(getattr(how, name) for name in _MORE_THAN_TOKENS):
        return None
    if req.finished_reason.to_json()["type"] == "abort" or any(getattr(req, name) is not None for name in _ON_REQUESTS):
        return None
    output = req.output_ids_through_stop[:COMPARED]
    if len(output) < 2 or len(req.origin_input_ids) + len(output) > MOST_TOKENS:  # a prefill draws the first token
        return None
    kept = ("ignore_eos", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
    sampling = {"temperature": 0, "max_new_tokens": len(output)} | {name: getattr(how, name) for name in kept}
    sampling["min_new_tokens"] = min(how.min_new_tokens, len(output))
    sampling["stop_token_ids"] = sorted(how.stop_token_ids or ())
    prompt = list(req.origin_input_ids)
    return {"request": printable(req.rid), "prompt": prompt, "output": list(output), "sampling": sampling}
