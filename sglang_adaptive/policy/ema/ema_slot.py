"""One slot of the EMA policy: a moving average of correct drafts, and the tier that it asks for.

The rules are those of SGLang 0.5.23 (``speculative/adaptive_spec_params.py``) and its documentation of
adaptive speculative decoding; the arithmetic keeps SGLang's order of operations, so that averages agree to
the last bit and thresholds are crossed in the same round.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.config.schema import CANDIDATE_STEPS, TUNING_BY_NAME
from sglang_adaptive.policy.observation import RoundObservation

logger = logging.getLogger(__name__)


class AdaptiveStepSlot:
    """Chooses among ``candidate_steps`` for one range of batch sizes.

    ``current_steps`` is always one of ``candidate_steps``. ``ema_accept_len`` counts accepted drafts per
    request without the bonus token, so a slot that accepts everything tends to ``current_steps``.
    """

    def __init__(self, initial_steps: int, cfg: Mapping[str, Any]) -> None:
        """Start at *initial_steps* when it is a candidate, otherwise at the middle candidate.

        Args:
            initial_steps: The depth that the server starts with, in draft steps.
            cfg: ``candidate_steps`` and any tuning keys; other keys are ignored, missing ones take defaults.

        Raises:
            ValueError: ``candidate_steps`` is empty.
        """
        self.candidate_steps: list[int] = sorted(set(cfg[CANDIDATE_STEPS]))
        if not self.candidate_steps:
            raise ValueError("candidate_steps is empty; a slot needs at least one depth")
        self.ema_alpha = _tuning(cfg, "ema_alpha")
        self.update_interval = int(_tuning(cfg, "update_interval"))
        self.warmup_batches = int(_tuning(cfg, "warmup_batches"))
        self.down_hysteresis = _tuning(cfg, "down_hysteresis")
        self.up_hysteresis = _tuning(cfg, "up_hysteresis")
        self.ceiling_coeff = _tuning(cfg, "ceiling_coeff")

        middle = self.candidate_steps[len(self.candidate_steps) // 2]
        self.current_steps = initial_steps if initial_steps in self.candidate_steps else middle
        self.ema_accept_len = float(self.current_steps - 1)
        self.batches = 0
        """Rounds learnt from."""
        self.stale_rounds = 0
        """Rounds left out because another depth than the current one had drafted them."""

    def observe(self, observation: RoundObservation) -> bool:
        """Learn from *observation* if the current depth drafted it; return whether the depth changed."""
        if observation.steps != self.current_steps:
            # Accept counts are censored at the depth that drafted: a late round of a shallower tier would
            # pull the average of a deeper one down, and a deeper tier's would push it up.
            self.stale_rounds += 1
            return False
        return self.update(observation.num_correct_drafts_per_req)

    def update(self, num_correct_drafts_per_req: Sequence[int]) -> bool:
        """Learn from a round drafted at the current depth; return whether the depth changed.

        Args:
            num_correct_drafts_per_req: Accepted drafts of each request, bonus token not counted; a round
                without requests teaches nothing.
        """
        if not num_correct_drafts_per_req:
            return False
        if self.current_steps > 0:
            mean = sum(num_correct_drafts_per_req) / len(num_correct_drafts_per_req)
            self.ema_accept_len = (1 - self.ema_alpha) * self.ema_accept_len + self.ema_alpha * mean
        self.batches += 1
        after_warmup = self.batches - self.warmup_batches
        if after_warmup <= 0 or after_warmup % self.update_interval:
            return False
        return self._move_to(self._next_steps())

    def _next_steps(self) -> int:
        here = self.candidate_steps.index(self.current_steps)
        if self.current_steps == 0:
            return self._probe_above_zero(here)
        there = self._after_drops(here)
        if there == here:
            there = self._after_rises(here)
        return self.candidate_steps[self._below_ceiling(here, there)]

    def _probe_above_zero(self, here: int) -> int:
        """Without drafting nothing is learnt, so every decision at zero steps tries the next tier."""
        probe = self.candidate_steps[min(here + 1, len(self.candidate_steps) - 1)]
        if probe > 0 and self.ema_accept_len < 0:  # a slot that started at zero has no average yet
            self.ema_accept_len = float(probe - 1)
        return probe

    def _drop_threshold(self, index: int) -> float:
        """Return the average at or below which the tier at *index* > 0 gives way to the one before it."""
        below = self.candidate_steps[index - 1]
        # A floor of zero steps is reached from (nearly) no accepted draft, not from a negative number.
        return (below - 0.5 if below else 0.5) + self.down_hysteresis

    def _rise_threshold(self, index: int) -> float:
        """Return the average above which the tier at *index* gives way to the next."""
        return self.candidate_steps[index] - 0.5 + self.up_hysteresis

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """The averages at or below which, and above which, the current depth is left; None at an end.

        At zero steps both are None: every decision there tries the next tier.
        """
        here = self.candidate_steps.index(self.current_steps)
        if self.current_steps == 0:
            return None, None
        at_top = here == len(self.candidate_steps) - 1
        return self._drop_threshold(here) if here else None, None if at_top else self._rise_threshold(here)

    def _after_drops(self, index: int) -> int:
        while index > 0:
            if self.ema_accept_len > self._drop_threshold(index):
                break
            index -= 1
        return index

    def _after_rises(self, index: int) -> int:
        top = len(self.candidate_steps) - 1
        while index < top and self.ema_accept_len > self._rise_threshold(index):
            index += 1
        return index

    def _below_ceiling(self, here: int, there: int) -> int:
        """Lower *there* to the ceiling; a rise passes, so that a deeper tier can show what it accepts."""
        if self.ceiling_coeff <= 0 or there > here:
            return there
        ceiling = max(1, math.ceil(self.ema_accept_len * self.ceiling_coeff))
        while there > 0 and self.candidate_steps[there] > ceiling:
            there -= 1
        return there

    def _move_to(self, steps: int) -> bool:
        if steps == self.current_steps:
            return False
        logger.debug("steps %d -> %d, EMA %.2f", self.current_steps, steps, self.ema_accept_len)
        self.current_steps = steps
        return True


def _tuning(cfg: Mapping[str, Any], name: str) -> float:
    return float(cfg.get(name, TUNING_BY_NAME[name].default))
