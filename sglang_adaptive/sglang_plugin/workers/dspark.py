"""DSPARK: a block draft with a confidence per draft token; SGLang's planner verifies the likeliest ones.

SGLang 0.5.23 plans a round's budget (the drafts to verify of all its requests) from a table of round times that it does
not measure; without a table it verifies everything. Here the table is learned from the rounds themselves. Widths,
graphs and acceptance stay SGLang's own.

A verify pass is padded to the next number of tokens that has a CUDA graph. Before each round the planner gets the times
of these passes for the round's number of requests (`policy/verify_cost.py`). If nothing is known yet, or the smallest
pass would save next to nothing, the round verifies everything, like SGLang without a table. A few rounds run with other
budgets to measure them.

Every rank plans for itself from shared inputs, and only the resulting lengths are broadcast. So decisions here depend
only on the first rank's times, shared at the same round on every rank, and on the rounds that all ranks launch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec
from sglang.srt.speculative.dspark_components.dspark_planner import ragged_capture_num_tokens
from sglang.srt.speculative.dspark_components.dspark_sps import SpsAdditiveCostTable
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2

from sglang_adaptive.policy.verify_cost import WHOLE, Costs, Grid, Trials, VerifyCosts, steps
from sglang_adaptive.runtime.round_times import RoundClock, of_the_first_rank
from sglang_adaptive.sglang_plugin import current
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing, load_shared

logger = logging.getLogger(__name__)

SHARE_EVERY, SHARE_LATER, EARLY = 32, 256, 1024
"""Rounds between updates of the table from the first rank's times: before round EARLY, and later."""
MOST_PENDING = 64
"""Maximum launched rounds with pending results; overlap has two."""

FALLBACK = "adaptive: learning the cost of DSPARK's rounds failed; SGLang plans from its own table from now on"
NOT_MEASURED = "adaptive: a round of DSPARK could not be measured; the table stays as it is"


@dataclass(slots=True)
class _Plan:
    """The decision for the coming round."""

    requests: int
    whole: bool
    """Whether everything is verified."""


class LearntTable:
    """Measures the rounds of a DSPARK worker and gives their costs to its planner."""

    def __init__(self, worker: Any, planner: Any, costs: VerifyCosts, share: Callable[[Any], Any]) -> None:
        """*share* returns the first rank's argument on every rank; all call it together."""
        self._worker, self._planner, self._share = worker, planner, share
        self.costs, self.trials = costs, Trials()
        self.saved_at: Callable[[], float | None] = lambda: None
        self._clock = RoundClock()
        self._grid: Grid | None = None
        self._deciding = Guard(FALLBACK, ranks_alike=True)
        self._measuring = Guard(NOT_MEASURED)
        self._own = planner._budget_planner.sps_table, planner._is_verify_all
        """SGLang's table, and whether it verifies everything."""
        self.why_left_alone = _why_left_alone(worker)
        """Why the planner keeps SGLang's table; None if it gets ours."""
        self._tables: dict[int, SpsAdditiveCostTable] = {}
        self._plan: _Plan | None = None
        self._ran: int | None = None
        """Tokens of the running round: its tier, or `WHOLE`; None without a graph."""
        self._pending: deque[tuple[int, int | None] | None] = deque(maxlen=MOST_PENDING)
        """Requests and tokens of rounds with pending results, None for a prefill in between."""
        self._last: int | None = None
        """Requests of the last round."""
        self._schedule = planner.schedule_layout
        planner.schedule_layout = self._schedule_layout

    # -- before a round -------------------------------------------------------------------------------------------

    def prepare(self, prepare: Callable[..., None], batch: Any, future_map: Any) -> None:
        """Decide on the coming round; then let SGLang's *prepare* plan its budget. Only with overlap scheduling."""
        if batch.spec_info is not None and not (batch.forward_mode.is_extend() or batch.is_extend_in_batch):
            self.begin(batch.batch_size())
        prepare(batch, future_map)

    def begin(self, requests: int) -> None:
        """Decide whether the coming round of *requests* is planned, and from which table, or is a trial."""
        if requests:
            self._deciding.attempt(self._begin, requests)
            if self._deciding.closed:
                self._restore()

    def _begin(self, requests: int) -> None:
        grid = self._find_grid()
        if grid is None:
            return
        self._last = requests
        if self.trials.launched % (SHARE_EVERY if self.trials.launched < EARLY else SHARE_LATER) == 0:
            self._hand_over(grid)
        if self.why_left_alone is not None:
            self.trials.launched += 1
            return
        forced = self._worker._forced_budget_frac  # /set_internal_state's
        found = self.costs.at(requests, grid)
        tiers = grid.of(requests)
        tried = None
        if forced is None:
            tried = self.trials.next(requests, grid, tiers[-1] if found.why_not is not None and tiers else None)
        else:
            self.trials.launched += 1
        budget_planner = self._planner._budget_planner
        if tried is not None:
            whole = tried == tiers[-1]
            # SGLang takes the whole part of the share of all drafts.
            forced = (min(tried - requests, requests * grid.drafts) + 0.5) / (requests * grid.drafts)
        elif forced is not None:
            whole = False
        else:
            whole = found.why_not is not None
        budget_planner.forced_budget_frac = forced
        if not whole and tried is None and forced is None:
            budget_planner.sps_table = self._table(found)
        self._plan = _Plan(requests, whole)

    def _find_grid(self) -> Grid | None:
        """Return the grid; None without CUDA graphs, where a round's padding is unknown."""
        if self._grid is None:
            runner = self._worker.model_runner
            tiers = ragged_capture_num_tokens(model_runner=runner)
            if tiers is None or not runner.decode_cuda_graph_runner.attn_backend.supports_ragged_verify_graph:
                if self.why_left_alone is None:
                    self.why_left_alone = "verify passes of unequal lengths run without CUDA graphs"
                    logger.warning("adaptive: DSPARK's table is not learned: %s", self.why_left_alone)
                return None
            self._grid = Grid(tiers, self.costs.drafts)
        return self._grid

    def _hand_over(self, grid: Grid) -> None:
        """Share the first rank's times."""
        shared = of_the_first_rank(self.costs.export_cost, self._share)
        self.costs.import_cost(shared, grid)
        self._tables.clear()

    def _table(self, found: Costs) -> SpsAdditiveCostTable:
        """Return *found*'s round times as an SGLang table."""
        made = self._tables.get(found.requests)
        if made is None:
            bias = 0.5 * min(found.seconds.values())
            tokens, seconds = steps({tier: time - bias for tier, time in found.seconds.items()})
            made = self._tables[found.requests] = SpsAdditiveCostTable(bias, [found.requests], [0.0], tokens, seconds)
        return made

    # -- a round --------------------------------------------------------------------------------------------------

    def _schedule_layout(self, *, budget: int | None, **more: Any) -> Any:
        """Wrap the planner's method: choose which drafts to verify, or all of them if that costs the same."""
        plan, self._plan = self._plan, None
        if plan is not None:
            self._deciding.attempt(self._set_whole, plan, budget)
        layout = self._schedule(budget=budget, **more)
        self._measuring.attempt(self._note, layout, budget)
        return layout

    def _set_whole(self, plan: _Plan, budget: int | None) -> None:
        self._planner._is_verify_all = plan.whole or budget is None or self._pays_for_all(plan.requests, budget)

    def _pays_for_all(self, requests: int, budget: int) -> bool:
        grid = self._grid
        assert grid is not None, "a plan has a grid"
        return grid.padded(requests + budget) == grid.padded(requests * (grid.drafts + 1))

    def _note(self, layout: Any, budget: int | None) -> None:
        """Note what the round pays for."""
        if layout is None or self._grid is None:
            self._ran = None
        else:
            whole = self._planner._is_verify_all or budget is None
            self._ran = WHOLE if whole else int(layout.graph_num_tokens)

    def launched(self, requests: int, from_graph: bool) -> None:
        """Note a round of *requests* that has been launched, and whether its verify pass ran from a CUDA graph."""
        self._pending.append((requests, self._ran if from_graph else None))
        self._ran = None

    def interrupted(self) -> None:
        """Note that something other than a decode round is launched."""
        self._clock.interrupt()
        self._pending.append(None)

    # -- after a round --------------------------------------------------------------------------------------------

    def arrived(self, requests: int) -> None:
        """Measure the round of *requests* whose result has arrived."""
        self._measuring.attempt(self._measure, requests)

    def _measure(self, requests: int) -> None:
        while self._pending and self._pending[0] is None:
            self._pending.popleft()
            self._clock.interrupt()
        launched = self._pending.popleft() if self._pending else None
        if launched is None or launched[0] != requests:  # a result was lost: begin anew
            self._pending.clear()
            self._clock.interrupt()
            return
        tokens = launched[1]
        seconds = self._clock.read(self.costs.drafts, requests)
        if tokens is None:
            self._clock.interrupt()
        elif seconds is not None:
            self.costs.add(requests, tokens, seconds)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Restore the planner's own table."""
        if self.why_left_alone is None:
            self.why_left_alone = f"an error: {self._deciding.error}"
            budget_planner = self._planner._budget_planner
            budget_planner.sps_table, self._planner._is_verify_all = self._own
            budget_planner.forced_budget_frac = self._worker._forced_budget_frac
        self._plan = None

    def snapshot(self) -> dict[str, Any]:
        """Return what was learned, for /server_info."""
        grid, last = self._grid, self._last
        found = None if grid is None or last is None else self.costs.at(last, grid)
        why_not = self.why_left_alone or ("no round has run yet" if found is None else found.why_not)
        return {
            "measured_rounds": self.costs.rounds,
            "profiled_cells": self.costs.from_profile,
            "profile_saved_at": self.saved_at(),
            "launched_rounds": self.trials.launched,
            "tried_rounds": self.trials.tried,
            "requests": last,
            "budget_is_on": why_not is None,
            "why_not": why_not,
            "seconds_by_tokens": {} if found is None else {str(m): s for m, s in found.seconds.items()},
            "table": None if grid is None else self.costs.table(grid),
            "user_table": get_spec().speculative_dspark_sps_table_path,
        }


def _why_left_alone(worker: Any) -> str | None:
    """Return why *worker*'s planner keeps SGLang's table, or None; rounds are measured in either case."""
    if get_spec().speculative_dspark_sps_table_path:
        return "--speculative-dspark-sps-table-path is given, and the planner keeps that table"
    if worker._simulate_acc_len > 0 and worker._simulate_acc_len != 1.0:
        return "SGLANG_SIMULATE_ACC_LEN accepts drafts that a budget may have left out"
    return None


class AdaptiveDSparkWorker(DSparkWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with a planner that learns what rounds cost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.learnt_table: LearntTable | None = None
        if not self._hosts_draft:
            return
        planner = self._verify_planner
        if not (planner.schedules_verify_budget and planner.is_compact_mode) or get_parallel().attn_dp_enabled:
            logger.warning("adaptive: DSPARK's table is not learned: this server plans no budgets for a single rank")
            return
        options = configuration().options
        costs = VerifyCosts(self.gamma, options, load_shared(options.profile_dir))
        sharing = CostSharing(costs)
        self.learnt_table = LearntTable(self, planner, costs, sharing)
        self.learnt_table.saved_at = sharing.saved_at
        current.learns(self.learnt_table)
        if (why := self.learnt_table.why_left_alone) is not None:
            logger.warning("adaptive: DSPARK's rounds are measured, and its planner is left alone: %s", why)

    def get_confidence_budget_prepare(self) -> Any:
        """Return the function that plans a round's budget before its launch; None without overlap scheduling."""
        prepare = super().get_confidence_budget_prepare()
        return prepare if prepare is None or self.learnt_table is None else partial(self.learnt_table.prepare, prepare)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch as SGLang does, and note what it pays for."""
        table = self.learnt_table
        if table is None:
            return super().forward_batch_generation(batch, *args, **kwargs)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            table.interrupted()
            return super().forward_batch_generation(batch, *args, **kwargs)
        requests = batch.seq_lens.shape[0]
        if get_schedule().disable_overlap_schedule:
            table.begin(requests)
        result = super().forward_batch_generation(batch, *args, **kwargs)
        table.launched(requests, result.can_run_cuda_graph)
        return result

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Measure the round whose result has arrived."""
        if self.learnt_table is not None:
            self.learnt_table.arrived(batch_size)
