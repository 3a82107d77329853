"""DSPARK's planner, SGLang's own classes, with the table learned from rounds of known duration."""

from __future__ import annotations

import atexit
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from benchmarks.harness import shapes
from sglang_adaptive.policy.profile import ProfileKey
from sglang_adaptive.policy.throughput.policy import ThroughputOptions
from sglang_adaptive.policy.verify_cost import AT_FIRST, ONE_TIER, SHARE, TOO_LITTLE, WHOLE, Grid, VerifyCosts
from sglang_adaptive.runtime.round_times import RoundClock
from tests.releases import since_the_newest

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.workers.dspark import LearntTable

pytestmark = pytest.mark.engine

GAMMA = 7
WIDTH = GAMMA + 1
SIZES = (1, 2, 4, 8, 12, 16, 24, 32)
TIERS = [size * WIDTH for size in SIZES]
GRID = Grid(TIERS, GAMMA)
A_TOKEN = 0.00004
RESULT = SimpleNamespace(can_run_cuda_graph=True)
KEY = ProfileKey("target", "draft", "GPU", 1, 1, "fa3")


class Served:
    """Rounds of a worker with SGLang's planner, on a separate clock; drafts are correct with *confidence*."""

    def __init__(self, planner: Any, monkeypatch: pytest.MonkeyPatch, share: Callable[[Any], Any] = lambda own: own,
                 costs: VerifyCosts | None = None, **spec: Any) -> None:  # fmt: skip
        from sglang_adaptive.sglang_plugin.workers import dspark

        settings = SimpleNamespace(**{"speculative_dspark_sps_table_path": None, **spec})
        monkeypatch.setattr(dspark, "get_spec", lambda: settings)
        self.planner = planner
        self.worker = SimpleNamespace(_forced_budget_frac=None, _simulate_acc_len=-1, model_runner=planner.model_runner)
        costs = costs or VerifyCosts(GAMMA, SimpleNamespace(profile_dir=None))
        self.table: LearntTable = dspark.LearntTable(self.worker, planner, costs, share)
        self.now, self.a_token, self.planning = 0.0, A_TOKEN, 0.0001
        self.table._clock = RoundClock(lambda: self.now)
        self._draw = random.Random(2)
        self._took: list[tuple[int, float]] = []
        self.tokens: list[int] = []
        """Of each round: its token count, `WHOLE` where everything was verified."""
        self.budgets: list[tuple[torch.Tensor, int]] = []
        """Of each round: the confidence, and the number of verified drafts."""

    def seconds(self, requests: int, tokens: int) -> float:
        """Return the duration of a round."""
        paid = GRID.padded(requests * WIDTH) if tokens == WHOLE else tokens
        assert paid is not None
        return 0.006 + 0.00003 * requests + self.a_token * paid + (0.0 if tokens == WHOLE else self.planning)

    def prefill(self) -> None:
        """Launch a prefill, which takes long."""
        self.table.interrupted()
        self._arrive()
        self.now += 0.3

    def rounds(self, count: int, requests: int, confidence: float = 0.6, noise: float = 0.05) -> None:
        """Run *count* rounds of *requests* like SGLang's scheduler: a result arrives when the next is launched."""
        for _ in range(count):
            sure = torch.tensor([[self._draw.uniform(confidence - 0.3, confidence + 0.3) for _ in range(GAMMA)]
                                 for _ in range(requests)])  # fmt: skip
            batch = SimpleNamespace(
                spec_info=SimpleNamespace(verify_token_budget=None), batch_size=lambda: requests,
                forward_mode=SimpleNamespace(is_extend=lambda: False), is_extend_in_batch=False,
                req_pool_indices_cpu=torch.arange(requests),
            )  # fmt: skip
            self.table.prepare(self.planner.prepare_verify_budget, batch, _Relay(sure))
            layout = self.planner.schedule_layout(
                req_pool_indices=torch.arange(requests), prefix_lens=torch.full((requests,), 100),
                device=torch.device("cpu"), confidence=sure, budget=batch.spec_info.verify_token_budget,
            )  # fmt: skip
            self.table.launched(requests, True)
            whole = self.planner._is_verify_all
            tokens = WHOLE if whole else layout.graph_num_tokens
            assert int(layout.verify_lens.sum()) <= layout.graph_num_tokens
            assert not whole or int(layout.verify_lens.sum()) == requests * WIDTH
            self.tokens.append(tokens)
            self.budgets.append((sure, int(layout.verify_lens.sum()) - requests))
            self._arrive()
            self._took.append((requests, self.seconds(requests, tokens) * self._draw.uniform(1 - noise, 1 + noise)))

    def until(self, reached: Callable[[], bool], most: int) -> None:
        """Run rounds of 16 requests until *reached*; fail after *most* of them."""
        for _ in range(most // 100):
            self.rounds(100, 16)
            if reached():
                return
        raise AssertionError(f"not in {most} rounds: {self.table.snapshot()}")

    def _arrive(self) -> None:
        for requests, took in self._took:
            self.now += took
            self.table.arrived(requests)
        self._took.clear()

    def rate(self, confidence: torch.Tensor, budget: int) -> float:
        """Return the expected tokens of a round per second of its true duration."""
        requests = confidence.shape[0]
        likely = confidence.cumprod(dim=1).flatten().sort(descending=True).values
        paid = GRID.padded(requests + budget)
        assert paid is not None
        tokens = WHOLE if paid == GRID.padded(requests * WIDTH) else paid
        return (requests + float(likely[:budget].sum())) / self.seconds(requests, tokens)


class _Relay:
    """The part of SGLang's FutureMap that the planner asks: the confidence of the requests."""

    def __init__(self, confidence: torch.Tensor) -> None:
        self._confidence = confidence

    def resolve_confidence_cpu(self, batch: Any) -> Any:
        ones = torch.ones(self._confidence.shape[0], dtype=torch.int64)
        return SimpleNamespace(confidence=self._confidence, generation=ones)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's planner of a compact server on one GPU, with graphs as SGLang captures them and without a table."""
    from sglang.srt.speculative.dspark_components import dspark_planner as theirs

    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    spec = SimpleNamespace(
        speculative_dspark_align_verify_tokens_to_graph_tier=False, speculative_dspark_confidence_sts_path=None,
        speculative_dspark_sps_table_path=None,
    )  # fmt: skip
    schedule = SimpleNamespace(disable_overlap_schedule=False, max_running_requests=max(SIZES))
    monkeypatch.setattr(theirs, "get_spec", lambda: spec)
    monkeypatch.setattr(theirs, "get_schedule", lambda: schedule)
    monkeypatch.setattr(theirs, "is_dp_attention_enabled", lambda: False)
    backend = SimpleNamespace(supports_ragged_verify_graph=True)
    graphs = SimpleNamespace(attn_backend=backend, ragged_verify_mode=True, capture_num_tokens=TIERS, max_bs=max(SIZES))
    generations = torch.ones(max(SIZES) + 1, dtype=torch.int64)
    pool = SimpleNamespace(req_to_token=torch.zeros(max(SIZES) + 1, 1), req_generation=generations)
    return theirs.DSparkVerifyPlanner(
        draft_model=SimpleNamespace(confidence_head=object()), gamma=GAMMA,
        model_runner=SimpleNamespace(decode_cuda_graph_runner=graphs, req_to_token_pool=pool), device="cpu", tp_rank=1,
        verify_num_draft_tokens=WIDTH, tp_sync=SimpleNamespace(sync=lambda site, values: values),
    )  # fmt: skip


def test_it_verifies_everything_until_a_table_is_known_and_then_what_is_best(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(planner, monkeypatch)
    served.prefill()
    served.rounds(32, 16)
    assert set(served.tokens[:23]) == {WHOLE}, "nothing is known yet, and nothing is tried"
    assert served.table.snapshot()["why_not"] is not None
    served.rounds(1500, 16)
    assert served.table.snapshot()["budget_is_on"]
    tried = served.table.trials.tried
    assert tried <= AT_FIRST + len(served.tokens) / SHARE

    served.budgets.clear()
    served.rounds(100, 16, confidence=0.5)
    rates = [(served.rate(sure, budget), sure) for sure, budget in served.budgets]
    best = [max(served.rate(sure, budget) for budget in range(16 * GAMMA + 1)) for _, sure in rates]
    everything = [served.rate(sure, 16 * GAMMA) for _, sure in rates]
    trials = served.table.trials.tried - tried
    near = sum(rate > 0.98 * wanted for (rate, _), wanted in zip(rates, best, strict=True))
    assert near >= len(rates) - trials, "all but the trials are within 2% of the best budget"
    assert sum(rate for rate, _ in rates) > 1.1 * sum(everything)


def test_sure_drafts_are_all_verified_by_sglangs_layout_of_everything(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(planner, monkeypatch)
    served.rounds(1500, 16)
    served.tokens.clear()
    served.rounds(100, 16, confidence=0.4)
    planned = [tokens for tokens in served.tokens if tokens != WHOLE]
    assert planned and max(planned) < 16 * WIDTH, "a round that pays for everything verifies everything"

    served.tokens.clear()
    before = served.table.trials.tried
    monkeypatch.setattr(served._draw, "uniform", lambda low, high: 0.999)
    served.rounds(50, 16)
    assert served.tokens.count(WHOLE) >= 50 - (served.table.trials.tried - before) > 0


def test_other_requests_are_planned_from_the_same_times(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(planner, monkeypatch)
    for requests in (8, 32):
        served.prefill()
        served.rounds(1200, requests)
    served.budgets.clear()
    served.prefill()
    served.rounds(20, 24, confidence=0.4)  # fewer than a trial needs
    rates = [(served.rate(sure, budget), sure) for sure, budget in served.budgets]
    assert all(rate > 0.95 * max(served.rate(sure, b) for b in range(24 * GAMMA + 1)) for rate, sure in rates)


def test_it_verifies_everything_where_that_costs_the_same_and_again_when_it_comes_to(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(planner, monkeypatch)
    served.a_token = 0.0
    served.rounds(1500, 16)
    assert served.table.snapshot()["why_not"] == TOO_LITTLE
    before, served.a_token = served.table.trials.tried, A_TOKEN
    served.until(lambda: served.table.snapshot()["budget_is_on"], 8000)  # verify passes are now expensive
    served.rounds(100, 16)
    assert sum(tokens != WHOLE for tokens in served.tokens[-100:]) > 50
    served.a_token = 0.0
    served.until(lambda: served.table.snapshot()["why_not"] == TOO_LITTLE, 12_000)
    assert (tried := served.table.trials.tried) > before
    served.tokens.clear()
    served.rounds(200, 16)
    trimmed = sum(tokens != WHOLE for tokens in served.tokens)
    assert trimmed <= served.table.trials.tried - tried, "all are verified again, whatever the table of then says"


def test_one_request_is_never_trimmed(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(planner, monkeypatch)
    served.rounds(600, 1)
    assert set(served.tokens) == {WHOLE} and served.table.trials.tried == 0
    assert served.table.snapshot()["why_not"] == ONE_TIER


def test_prefills_between_and_lost_results_are_no_times(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(planner, monkeypatch)
    for _ in range(40):
        served.prefill()
        served.rounds(6, 16)
    found = {
        cell: seconds for *cell, seconds, _ in map(list, served.table.costs.export_cost()) for cell in [tuple(cell)]
    }
    assert found[16, WHOLE] == pytest.approx(served.seconds(16, WHOLE), rel=0.06)
    measured = served.table.costs.rounds
    served.table.arrived(16)  # of a round that was never launched
    served.table.arrived(7)
    served.rounds(3, 16)
    assert measured <= served.table.costs.rounds <= measured + 3
    assert max(max(recent) for recent in served.table.costs._recent.values()) < 0.1


def test_ranks_that_measure_other_times_decide_alike(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    shared: list[Any] = []
    second = copy.copy(planner)
    second._budget_planner = copy.copy(planner._budget_planner)
    second._uniform_layout_cache = {}
    first = Served(planner, monkeypatch, lambda own: (shared.append(own), own)[1])
    of_first = iter(shared)
    other = Served(second, monkeypatch, lambda own: next(of_first))
    other.planning, other.a_token = 0.002, 0.0001  # its clock reads something else
    for requests in (16, 8, 16):
        for _ in range(500):
            first.rounds(1, requests, noise=0.0)
            other.rounds(1, requests, noise=0.0)
    assert first.tokens == other.tokens and set(first.tokens) > {WHOLE}
    assert first.table.costs.export_cost() != other.table.costs.export_cost()


def test_a_share_that_is_asked_for_is_kept(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(planner, monkeypatch)
    served.rounds(100, 16)
    tried = served.table.trials.tried
    served.worker._forced_budget_frac = 0.25  # as SGLang's /set_internal_state does
    served.planner.set_forced_budget_frac(0.25)
    served.budgets.clear()
    served.rounds(100, 16)
    assert {budget for _, budget in served.budgets} == {28}
    assert served.table.trials.tried == tried


def test_a_table_of_the_user_stays(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = planner._budget_planner.sps_table
    served = Served(planner, monkeypatch, speculative_dspark_sps_table_path="table.json")
    served.rounds(1500, 16)
    assert planner._budget_planner.sps_table is given and planner._is_verify_all
    found = served.table.snapshot()
    assert not found["budget_is_on"] and "--speculative-dspark-sps-table-path" in found["why_not"]
    assert found["tried_rounds"] == 0 and found["measured_rounds"] > 1400


@pytest.mark.parametrize("graphs", [False, True])
def test_without_graphs_nothing_is_learnt_and_one_line_says_so(
    graphs: bool, planner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(planner, monkeypatch)
    if graphs:
        planner.model_runner.decode_cuda_graph_runner.attn_backend.supports_ragged_verify_graph = False
    else:
        planner.model_runner.decode_cuda_graph_runner = None
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            served.table.begin(16)
    assert [record.getMessage() for record in caplog.records] == [
        "adaptive: DSPARK's table is not learned: verify passes of unequal lengths run without CUDA graphs"
    ]
    assert "without CUDA graphs" in served.table.snapshot()["why_not"]


def test_an_error_of_ours_leaves_the_planner_as_sglang_made_it(
    planner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang_adaptive.sglang_plugin import guard

    monkeypatch.setattr(guard, "require_of_all", lambda error: None)
    own = planner._budget_planner.sps_table
    served = Served(planner, monkeypatch)
    served.rounds(1500, 16)
    assert planner._budget_planner.sps_table is not own

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(served.table.costs, "at", fails)
    with caplog.at_level(logging.ERROR):
        served.rounds(1, 16)
    assert planner._budget_planner.sps_table is own and planner._is_verify_all
    monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "adaptive: learning the cost of DSPARK's rounds failed; SGLang plans from its own table from now on"
    ]


@pytest.fixture
def worker(planner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return a factory for our workers on one rank, without SGLang's constructor and rounds."""
    from sglang_adaptive.sglang_plugin import current
    from sglang_adaptive.sglang_plugin.start import profiles
    from sglang_adaptive.sglang_plugin.workers import dspark

    def construct(self: Any, hosts: bool = True) -> None:
        self._target_worker, self._hosts_draft, self._verify_planner = SimpleNamespace(), hosts, planner
        self.gamma, self._simulate_acc_len, self._forced_budget_frac = GAMMA, -1.0, None
        self.model_runner = planner.model_runner

    def run(self: Any, batch: Any) -> Any:
        return RESULT

    rank = SimpleNamespace(rank_in_group=0, broadcast_object=lambda found, src=0: found)
    parallel = SimpleNamespace(attn_dp_enabled=False, attn_dp_size=1, tp_group=rank)
    monkeypatch.setattr(dspark.DSparkWorkerV2, "__init__", construct)
    monkeypatch.setattr(dspark.DSparkWorkerV2, "forward_batch_generation", run)
    monkeypatch.setattr(dspark, "get_spec", lambda: SimpleNamespace(speculative_dspark_sps_table_path=None))
    monkeypatch.setattr(dspark, "get_parallel", lambda: parallel)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: parallel)
    monkeypatch.setattr(profiles, "profile_key", lambda: KEY)
    options = ThroughputOptions(profile_dir=str(tmp_path))
    monkeypatch.setattr(dspark, "configuration", lambda: SimpleNamespace(options=options))
    monkeypatch.setattr(current, "_learnt_table", None)
    profiles._store.cache_clear()
    yield dspark.AdaptiveDSparkWorker
    profiles._store.cache_clear()


def batch_of(requests: int, extends: bool = False) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extends, is_idle=lambda: False)
    return SimpleNamespace(forward_mode=mode, is_extend_in_batch=extends, seq_lens=torch.ones(requests))


def test_a_worker_measures_its_rounds_and_the_next_start_begins_from_them(
    worker: Callable[..., Any], planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_adaptive.sglang_plugin import current
    from sglang_adaptive.sglang_plugin.workers import dspark

    first = worker()
    table = first.learnt_table
    assert current.learnt_table() is table and table.snapshot()["why_not"] == "no round has run yet"
    assert first.get_confidence_budget_prepare().func == table.prepare
    monkeypatch.setattr(dspark, "get_schedule", lambda: SimpleNamespace(disable_overlap_schedule=True))
    ticks = iter(range(1000))
    table._clock = RoundClock(lambda: float(next(ticks)))

    def run(self: Any, batch: Any) -> Any:
        if not batch.is_extend_in_batch:
            requests = batch.seq_lens.shape[0]
            planner.schedule_layout(
                req_pool_indices=torch.arange(requests), prefix_lens=None, device=torch.device("cpu"), confidence=None,
                budget=None,
            )  # fmt: skip
        return RESULT

    monkeypatch.setattr(dspark.DSparkWorkerV2, "forward_batch_generation", run)
    assert first.forward_batch_generation(batch_of(4, extends=True)) == RESULT
    for _ in range(12):
        assert first.forward_batch_generation(batch_of(16)) == RESULT
        first.on_verify_complete_cpu([0] * 16, batch_size=16)
    assert table.costs.export_cost() == [(16, WHOLE, 1.0, 11)], "the first one follows a prefill"

    sharing = table._share
    assert sharing._saver.close(lambda: table.costs.export_profile(KEY, "measured"))
    assert table.snapshot()["profile_saved_at"] is not None
    again = worker()
    assert again.learnt_table.costs.export_cost() == [(16, WHOLE, 1.0, 11)]
    assert again.learnt_table.snapshot()["profiled_cells"] == 1
    for one in (sharing, again.learnt_table._share):
        atexit.unregister(one._close)


def test_workers_that_learn_nothing(worker: Callable[..., Any], planner: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert worker(hosts=False).learnt_table is None  # a pipeline stage without the draft
    planner._budget_planner = None  # static mode
    with caplog.at_level(logging.WARNING):
        made = worker()
    assert made.learnt_table is None and made.forward_batch_generation(batch_of(1)) == RESULT
    assert [record.getMessage() for record in caplog.records] == [
        "adaptive: DSPARK's table is not learned: this server plans no budgets for a single rank"
    ]


def test_ours_is_used_where_the_launcher_says_so() -> None:
    from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_adaptive.sglang_plugin.notes import LEARNS, NOTE
    from sglang_adaptive.sglang_plugin.workers.choice import adaptive_class
    from sglang_adaptive.sglang_plugin.workers.dspark import AdaptiveDSparkWorker

    dspark, asked = SpeculativeAlgorithm.DSPARK, SimpleNamespace(**{NOTE: {"reason": "", LEARNS: True}})
    assert adaptive_class(DSparkWorkerV2, dspark, asked) is AdaptiveDSparkWorker
    assert adaptive_class(DSparkWorkerV2, dspark, SimpleNamespace()) is DSparkWorkerV2
    assert adaptive_class(dict, dspark, asked) is dict, "a platform's own worker"


def test_sglang_reads_the_draft_of_the_benchmark() -> None:
    from sglang.srt.models.dspark import DSparkConfidenceHead, build_confidence_head, build_markov_head
    from sglang.srt.speculative.dspark_components.dspark_config import resolve_runtime_config
    from transformers import Qwen3Config

    shape = {**shapes.planned_draft_of(shapes.TARGETS["qwen3-8b"]), "hidden_size": 64, "vocab_size": 512}
    shape["dflash_config"] = {**shape["dflash_config"], "mask_token_id": 511}
    config = Qwen3Config(**shape)
    found = resolve_runtime_config(draft_hf_config=config, speculative_num_draft_tokens=8, target_vocab_size=512)
    assert (found.gamma, found.verify_num_draft_tokens) == (GAMMA, WIDTH)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
        head = build_confidence_head(config)
    assert isinstance(head, DSparkConfidenceHead)
    confidence, _ = head.predict(
        torch.zeros(2, GAMMA, 64), anchor_tokens=torch.zeros(2, dtype=torch.int64),
        draft_tokens=torch.zeros(2, GAMMA, dtype=torch.int64), markov_head=build_markov_head(config),
    )  # fmt: skip
    assert confidence.shape == (2, GAMMA)


@pytest.mark.parametrize("mode", [pytest.param("compact", marks=since_the_newest), "static"])
def test_the_launcher_lets_it_learn_and_keeps_speculation_static(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang_adaptive.sglang_plugin import env, hooks
    from sglang_adaptive.sglang_plugin.launch import activation
    from sglang_adaptive.sglang_plugin.notes import LEARNS, NOTE

    for name in ("problems", "warn_when_untested", "install_now", "of_launcher"):
        monkeypatch.setattr(hooks, name, lambda *_: [])
    for variable in (env.ACTIVE, env.VERIFY_BUDGET):  # the launcher sets them for its children
        monkeypatch.setenv(variable.name, "before")
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", mode)
    config = tmp_path / "throughput.json"
    config.write_text('{"policy": "throughput"}')
    server_args = SimpleNamespace(
        speculative_adaptive=False, speculative_adaptive_config=str(config), speculative_algorithm="DSPARK",
        speculative_num_steps=99, disaggregation_mode="null", use_ray=False, enable_hisparse=False,
        kv_canary="none", enable_lora=False, lora_paths=None, pp_size=1, attn_dp_size=1,
    )  # fmt: skip
    with caplog.at_level(logging.INFO):
        activation._prepare(server_args)
    note, (line,) = getattr(server_args, NOTE), [record.getMessage() for record in caplog.records]
    assert not server_args.speculative_adaptive and env.ACTIVE.get() == "1"
    assert note.get(LEARNS, False) == (mode == "compact")
    if mode == "compact":
        assert line == "adaptive: DSPARK plans its own widths; the cost of its rounds is learned while serving"
    else:
        assert line.startswith("adaptive speculation is off") and "SGLANG_RAGGED_VERIFY_MODE is static" in line


def test_server_info_says_what_was_learnt(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_adaptive.sglang_plugin import current
    from sglang_adaptive.sglang_plugin.admin import server_info
    from sglang_adaptive.sglang_plugin.notes import NOTE

    served = Served(planner, monkeypatch)
    served.rounds(1500, 16)
    monkeypatch.setattr(current, "_learnt_table", served.table)
    monkeypatch.setattr(server_info, "profile_key", lambda: KEY)
    monkeypatch.setattr(server_info.ranks, "replica", lambda: 0)
    args = SimpleNamespace(**{NOTE: {"reason": "so"}})
    monkeypatch.setattr("sglang.srt.runtime_context.get_server_args", lambda: args)
    state: dict[str, Any] = {}
    server_info.add_adaptive(state)
    told = json.loads(json.dumps(state["adaptive"]))
    assert (told["active"], told["reason"], told["profile_key"]["draft_model"]) == (False, "so", "draft")
    found = told["dspark"]
    assert found["budget_is_on"] and found["why_not"] is None and found["requests"] == 16
    assert found["launched_rounds"] == 1500 and 1400 < found["measured_rounds"] < 1500
    assert list(map(int, found["seconds_by_tokens"])) == GRID.of(16)

    from sglang.srt.speculative.dspark_components.dspark_sps import SpsAdditiveCostTable

    table = SpsAdditiveCostTable(**found["table"])
    for tier in GRID.of(16)[:-1]:
        assert table.step_time(num_reqs=16, budget=tier - 16) == pytest.approx(served.seconds(16, tier), rel=0.03)
    documented = Path(__file__).parents[3].joinpath("docs", "json.md").read_text().partition("## `dspark`")[2]
    assert all(f"`{name}`" in documented for name in found)
