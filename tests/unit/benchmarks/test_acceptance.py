"""The benchmarks' plugin: it accepts drafts as declared or recorded, and counts rounds correctly."""

from __future__ import annotations

import pkgutil
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.harness import acceptance, internals
from benchmarks.harness.acceptance import TRACE_FILE, Declared, Draw, Meter, Process, Replay, chances_of, drawn_ahead
from sglang_adaptive.lab.cpu_engine.kernels.tree import verify_tree_greedy_cpu
from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.sglang_plugin.stages.zero_steps import deferred_draft_extend as deferred

TRACE = Path(__file__).parents[3] / "benchmarks" / "traces" / "tiny.npz"


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Of one rank."""
    monkeypatch.setattr(acceptance, "_same_on_all_ranks", lambda correct: None)
    return Process(tmp_path / "acceptance", create=True)


def request(own: list[float] | None = None, question: int | None = None, tokens: int = 0) -> SimpleNamespace:
    declared = {} if own is None else {"acceptance": own}
    named = {} if question is None else {"trace": question}
    sampling = SimpleNamespace(custom_params={**declared, **named} or None)
    return SimpleNamespace(sampling_params=sampling, output_ids=[0] * tokens)


def recorded(number: int, tokens: int = 1) -> SimpleNamespace:
    return request(question=number, tokens=tokens)


def test_a_round_begins_however_its_drafts_are_verified(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks: dict[str, tuple[object, object]] = {}
    monkeypatch.setattr(HookRegistry, "register", lambda target, hook, kind: hooks.update({target: (hook, kind)}))
    monkeypatch.setattr(acceptance.plugin, "in_scheduler", lambda: True)
    monkeypatch.setenv(acceptance.PROCESS_FILE, str(process.path))
    acceptance.register()
    begin, kind = hooks["sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"]
    assert kind == HookType.BEFORE and callable(pkgutil.resolve_name(internals.SHORT_RESULT))
    assert hooks[internals.SHORT_RESULT] == (begin, kind)


# -- drawn ------------------------------------------------------------------------------------------------------


def test_every_position_is_accepted_as_declared_and_requests_are_independent() -> None:
    torch.manual_seed(1)
    declared = [Declared(0.8, 0.9), Declared(0.8, 0.9), Declared(0.0), Declared(1.0)]
    drawn = drawn_ahead(chances_of(declared, "cpu"), 20_000).numpy()
    for position in range(1, 5):
        reached = drawn[:, 0] >= position - 1
        share = (drawn[reached, 0] >= position).mean()
        chance = 0.8 * 0.9 ** (position - 1)
        assert abs(share - chance) < 5 * (chance * (1 - chance) / reached.sum()) ** 0.5
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 5 / 20_000**0.5
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 5 / 20_000**0.5
    assert drawn[:, 2].max() == 0 and drawn[:, 3].min() >= 7


def verified(candidates: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the kernel's results for chains (requests, width): tokens, accepted drafts and the accept index."""
    requests, width = candidates.shape
    nodes, chain = torch.arange(requests * width).view(requests, width), torch.arange(1, width + 1).repeat(requests, 1)
    chain[:, -1] = -1
    tokens, correct = torch.zeros(requests * width, dtype=torch.int32), torch.zeros(requests, dtype=torch.int32)
    index = torch.full((requests, width), -1, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=tokens, accept_index=index, accept_token_num=correct, candidates=candidates, retrive_index=nodes,
        retrive_next_token=chain, retrive_next_sibling=torch.full_like(chain, -1), target_predict=target,
    )  # fmt: skip
    return tokens, correct, index


def test_a_drawn_round_is_what_the_real_verify_would_give(process: Process) -> None:
    """Given a target that agrees with exactly the drawn drafts, the kernel fills the same tensors."""
    torch.manual_seed(3)
    draw = Draw(process)
    draw.begin(None, SimpleNamespace(reqs=[request([0.7, 1.0]) for _ in range(6)]))
    candidates, target = torch.randint(0, 50, (6, 4)), torch.randint(50, 99, (6, 4))
    predict, correct = torch.zeros(24, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
    index = draw(torch.arange(24).int().view(6, 4), predict, correct, candidates, target, 6, 3)

    agreeing = torch.where(torch.arange(4) < correct[:, None], candidates.roll(-1, 1), target)
    real_predict, real_correct, real_index = verified(candidates, agreeing)
    assert len(set(correct.tolist())) > 1
    assert torch.equal(correct, real_correct) and torch.equal(index, real_index)
    accepted = index[index >= 0].long()
    assert torch.equal(predict[accepted], real_predict[accepted])


@pytest.mark.parametrize("sampled", [False, True])
def test_a_drawn_block_is_what_the_real_verify_would_give(process: Process, sampled: bool) -> None:
    torch.manual_seed(4)
    requests, width = 6, 16
    draw = Draw(process)
    mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: False)
    reqs = [request([0.8, 1.0]) for _ in range(requests)]
    draw.begin_block(None, SimpleNamespace(reqs=reqs, forward_mode=mode, is_extend_in_batch=False))
    candidates, target = torch.randint(0, 50, (requests, width)), torch.randint(50, 99, (requests, width))
    logits = torch.nn.functional.one_hot(target.flatten(), 99).float()
    accepted, committed = (torch.zeros(requests, dtype=torch.int32) for _ in range(2))
    bonus, tokens = torch.zeros(requests, dtype=torch.int64), torch.zeros(requests, width, dtype=torch.int64)
    draw.of_blocks(
        candidates=candidates, target_predict=None if sampled else target, accept_len=accepted, commit_lens=committed,
        bonus=bonus, out_tokens=tokens, next_token_logits=logits, simulate_acc_len=1.0,
    )  # fmt: skip

    agreeing = torch.where(torch.arange(width) < accepted[:, None], candidates.roll(-1, 1), target)
    real_tokens, real_accepted, index = verified(candidates, agreeing)
    assert accepted.tolist() == real_accepted.tolist() == (committed - 1).tolist() and len(set(accepted.tolist())) > 2
    for row, kept in enumerate(committed.tolist()):
        assert tokens[row, :kept].tolist() == real_tokens[index[row, :kept].long()].tolist()
        assert tokens[row, kept - 1] == bonus[row]


def test_a_round_without_drafts_is_left_as_the_real_path_made_it(process: Process) -> None:
    index, predict, correct = torch.tensor([[0], [1]]), torch.tensor([7, 8]), torch.tensor([0, 0])
    draw = Draw(process)
    assert draw(index, predict, correct, torch.zeros(2, 1), torch.zeros(2, 1), 2, 0) is index
    assert predict.tolist() == [7, 8] and correct.tolist() == [0, 0]


def accepted(draw: Draw, requests: list[SimpleNamespace], steps: int = 3) -> list[int]:
    """Return how many of *steps* drafts each request of a round accepts."""
    draw.begin(None, SimpleNamespace(reqs=requests))
    tokens = torch.zeros(len(requests), steps + 1, dtype=torch.long)
    correct = torch.zeros(len(requests), dtype=torch.int32)
    draw(tokens.int(), tokens.flatten().int(), correct, tokens, tokens, len(requests), steps)
    return correct.tolist()


def test_requests_are_drawn_from_their_own_process(process: Process) -> None:
    process.declared = Declared(0.0)
    draw = Draw(process)
    never, always = request(), request([1.0, 1.0])
    assert accepted(draw, [never, always]) == [0, 3]
    assert accepted(draw, [always, never, always]) == [3, 0, 3]
    process.declared = Declared(1.0)
    assert accepted(draw, [never, always]) == [3, 3]
    with pytest.raises(RuntimeError, match="1 requests are verified, but 2 were declared"):
        draw(torch.zeros(1, 2), torch.zeros(2), torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 2), 1, 1)


def test_shadow_acceptance_is_drawn_per_request(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.declared = Declared(0.25)
    draw, batch = Draw(process), SimpleNamespace(reqs=[request(), request([1.0, 1.0]), request([0.0, 1.0])])
    monkeypatch.setattr(deferred, "shadow_accepts", partial(draw.shadow_accepts, deferred.shadow_accepts))
    draw.resolving(None, None, None, None, batch)
    drafts = deferred.ShadowDrafts(torch.zeros(3), {"a": 0, "c": 1})

    def told(keys: list[str]) -> list[int]:
        note = RoundNote(drafted(0))
        drafts.attach(note, keys)
        note.arrived(SimpleNamespace(next_token_ids=torch.zeros(3)))
        return list(note.shadow_accepts)

    assert told(["d", "e", "f"]) == []  # no shadow draft of this round
    assert told(["b", "c", "a"]) == [1, 0]
    drawn = [told(["a", "b", "d"]) for _ in range(2000)]
    assert {len(one) for one in drawn} == {1}
    assert abs(sum(map(sum, drawn)) / 2000 - 0.25) < 0.05


# -- replayed ---------------------------------------------------------------------------------------------------


def test_every_position_accepts_what_was_recorded_there() -> None:
    counts = bytes(random.Random(1).randrange(8) for _ in range(200))
    replay, one = Replay([bytes(5), counts]), recorded(1)
    draw, at = random.Random(2), 0
    while at < len(counts):
        steps = draw.choice([0, 1, 2, 3, 5, 7])
        replay.begin([one])
        assert replay.concerns(1)
        accepted = replay.accept(steps)[0] if steps else 0  # a zero-step round accepts nothing
        assert accepted == min(counts[at], steps)
        at += accepted + 1
    replay.begin([one])  # with overlap, one more round runs before the last one's end is known
    assert replay.accept(7) == [0]


def test_shadow_drafts_are_judged_after_the_tokens_on_the_host() -> None:
    replay = Replay([bytes([0, 3, 0])])
    assert [replay.shadow(recorded(0, tokens)) for tokens in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_a_request_that_names_no_question_beside_others_accepts_nothing() -> None:
    replay, late, one = Replay([bytes([3, 9, 9, 9, 1])]), request(), recorded(0)
    replay.begin([late])
    assert not replay.concerns(1)
    replay.begin([late, one])
    assert replay.concerns(2) and replay.accept(7) == [0, 3]
    replay.begin([one, late])
    assert replay.concerns(2) and replay.accept(7) == [1, 0]


def test_the_server_s_draw_takes_counts_from_the_trace(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACE_FILE, str(TRACE))
    draw, reqs = Draw(process), [recorded(0), recorded(30)]
    replay = Replay.of_file(str(TRACE))
    assert replay is not None and Replay.of_file(None) is None
    expected = [recorded(0), recorded(30)]
    for steps in (3, 7, 1, 5):
        replay.begin(expected)
        assert accepted(draw, reqs, steps) == replay.accept(steps)
    result, drafts = SimpleNamespace(next_token_ids=torch.zeros(2)), deferred.ShadowDrafts(torch.zeros(2), {})
    draw.resolving(None, None, None, result, SimpleNamespace(reqs=reqs))
    drawn = draw.shadow_accepts(deferred.shadow_accepts, drafts, [(0, 0), (1, 1)], result)
    assert drawn == [replay.shadow(one) for one in reqs]


# -- counted ----------------------------------------------------------------------------------------------------


def test_only_rounds_after_another_one_with_enough_requests_are_full(process: Process) -> None:
    times = iter([1.0, 1.5, 2.0, 9.0, 9.25, 9.5])
    process.declared, process.full_from = Declared(0.5), 2
    meter = Meter(process, clock=lambda: next(times))
    drafted, plain = SimpleNamespace(speculative_num_draft_tokens=2), SimpleNamespace(speculative_num_draft_tokens=None)
    before = process.read()
    meter.count([request()] * 2, 3, drafted)  # no round before it
    meter.count([request()] * 3, 6, drafted)  # full: 0.5 s
    meter.count([request()], 1, plain)  # too few
    meter.prefill()
    meter.count([request()] * 2, 2, plain)  # after a prefill
    meter.count([request()] * 2, 2, plain)  # full: 0.25 s
    meter.count([request([1.0, 1.0]), request()], 3, drafted)  # full: 0.25 s
    counted = process.read() - before
    assert (counted.rounds, counted.requests, counted.tokens, counted.switches) == (6, 12, 17, 2)
    assert (counted.full_rounds, counted.full_seconds, counted.full_tokens, counted.full_requests) == (3, 1.0, 11, 7)
    assert counted.full_expected == pytest.approx(3 * 1.5 + 2 * 1 + (2.0 + 1.5))
    assert counted.depths() == {"0": 3, "1": 3} and counted.batch_size == 2
    assert process.round_seconds(before) == [0.5, 0.25, 0.25]


def test_replayed_tokens_are_what_is_expected(process: Process) -> None:
    Meter(process).count([recorded(0), recorded(1)], 9, SimpleNamespace(speculative_num_draft_tokens=8))
    assert process.read().expected == 9
