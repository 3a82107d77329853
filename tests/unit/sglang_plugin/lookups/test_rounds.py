"""Which texts the rounds of a scheduler track, without an engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.throughput.lookups import KINDS
from sglang_adaptive.policy.throughput.policy import ThroughputOptions
from sglang_adaptive.sglang_plugin.stages import capacity
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds
from sglang_adaptive.sglang_plugin.stages.lookups.texts import SLOTS, Texts

REQUESTS = 4


class Controller:
    """What the rounds ask and tell a controller."""

    tracks_texts = True

    def __init__(self) -> None:
        self.policy = SimpleNamespace(lookup_requests=REQUESTS, searches_memory=True)
        self.states = SimpleNamespace(live=drafted(3))
        self.requests: Sequence[str] = ()

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        self.policy.lookup_requests = REQUESTS if allowed else 0


class Req:
    def __init__(self, rid: str, prompt: list[int]) -> None:
        self.rid, self.origin_input_ids, self.output_ids = rid, array("q", prompt), array("q")


def batch(*reqs: Req, has_grammar: bool = False) -> Any:
    return SimpleNamespace(reqs=list(reqs), has_grammar=has_grammar)


def lookup_rounds(options: ThroughputOptions) -> LookupRounds:
    model = SimpleNamespace(context_len=100, vocab_size=100)
    runner = SimpleNamespace(model_config=model, device="cpu")
    worker = SimpleNamespace(target_worker=SimpleNamespace(model_runner=runner))
    controller: Any = Controller()
    return LookupRounds(worker, controller, options=options)


@pytest.fixture
def made() -> LookupRounds:
    return lookup_rounds(ThroughputOptions())


def text(made: LookupRounds, row: int = 0) -> list[int]:
    """Return the text on the device of the round's request *row*, up to the first unknown token."""
    assert made._slots is not None
    tokens: list[int] = made._texts._texts[int(made._slots[row])].tolist()
    return tokens[: tokens.index(-1)]


def test_the_logits_of_graphs_have_rows_for_each_kind_of_round(monkeypatch: pytest.MonkeyPatch) -> None:
    most = max(sizes[-1] * (drafts + 1) for drafts, sizes in KINDS.items())
    for lookup, rows in (("auto", most), (False, 8)):
        config = check_config({"throughput": {"lookup": lookup}}, "test")
        monkeypatch.setattr(capacity, "configuration", lambda config=config: config)
        assert capacity.rows_of_logits(lambda runner: 8, None) == rows
        assert capacity.rows_of_logits(lambda runner: 4096, None) == 4096


@pytest.mark.parametrize(("started", "asked", "line"), [
    (0, {"lookup_memory_mb": 64}, "lookup_memory_mb: got 64; expected 0: the memory is set up at server start"),
    (1, {"lookup_memory_mb": 64}, "lookup_memory_mb: got 64; expected 1: the memory is set up at server start"),
    (1, {"lookup_memory_mb": 1, "lookup_texts": "x"},
     'lookup_texts: got "x"; expected null: the memory is set up at server start'),
    (1, {"lookup_memory_mb": 1}, None),
    (1, {}, None),
])  # fmt: skip
def test_a_running_server_keeps_its_memory_or_turns_it_off(
    started: int, asked: dict[str, Any], line: str | None
) -> None:
    rounds = lookup_rounds(ThroughputOptions(lookup_memory_mb=started))
    config = check_config({"throughput": asked}, "F")
    if line is None:
        rounds.require(config)
    else:
        with pytest.raises(ConfigError) as refused:
            rounds.require(config)
        assert str(refused.value) == f"F: throughput.{line}"


def test_an_id_that_is_used_again_names_another_text(made: LookupRounds) -> None:
    made.begin(batch(Req("same", [1, 2, 3, 4, 5])))
    for prompt in ([9, 8], [7] * 20):
        again = Req("same", prompt)
        made.begin(batch(again))
        assert text(made) == prompt


def test_the_least_recently_tracked_text_makes_room(made: LookupRounds) -> None:
    kept = [Req(str(number), [number, 40]) for number in range(SLOTS + 1)]
    for req in kept:
        made.begin(batch(req))
        assert text(made) == list(req.origin_input_ids)
    assert list(made._tracked) == [req.rid for req in kept[1:]]
    assert len({one.slot for one in made._tracked.values()}) == SLOTS


def test_small_batches_without_a_grammar_are_tracked(made: LookupRounds) -> None:
    few = [Req(str(number), [1]) for number in range(REQUESTS)]
    for asked, tracked in (
        (batch(*few), True),
        (batch(*few, Req("more", [1])), False),
        (batch(*few, has_grammar=True), False),
        (batch(few[0]), True),
    ):
        made.begin(asked)
        assert (made._batch is asked) is tracked
        assert (made._slots is not None) is tracked


def test_the_policy_hears_who_comes(made: LookupRounds) -> None:
    controller: Any = made._controller
    few, many = batch(Req("a", [1]), Req("b", [1])), batch(*(Req(str(n), [1]) for n in range(REQUESTS + 1)))
    for prepared, named in ((few, ["a", "b"]), (None, ["a", "b"]), (many, ())):
        assert made.update_running_batch(lambda *_, found=prepared: found, None, None) is prepared
        assert controller.requests == named


def test_an_error_before_a_round_ends_lookups_too(made: LookupRounds, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Texts, "write", failing)
    monkeypatch.setattr("sglang_adaptive.sglang_plugin.guard.require_of_all", lambda error: None)
    made.begin(batch(Req("a", [1])))
    assert made.guard.error == "RuntimeError: planted"
    assert made._controller.policy.lookup_requests == 0 and made._batch is None
