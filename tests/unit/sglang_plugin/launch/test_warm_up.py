"""The batch sizes that the warm-up runs, and its requests, on a server that only records them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from sglang.srt.entrypoints import http_server

from sglang_adaptive.sglang_plugin.admin.handlers import WARM_UP_KEY
from sglang_adaptive.sglang_plugin.launch import warm_up
from sglang_adaptive.sglang_plugin.launch.warm_up import batch_sizes, few_sizes, wait_and_warm_up


def test_each_power_of_two_has_a_size_that_is_no_multiple_of_16() -> None:
    assert batch_sizes(64) == [1, 2, 3, 4, 7, 8, 13, 16, 25, 32, 49, 64]
    assert batch_sizes(1) == [1]
    assert batch_sizes(40) == [1, 2, 3, 4, 7, 8, 13, 16, 25, 32, 40]


def test_a_tier_without_graphs_at_small_sizes_runs_at_its_smallest() -> None:
    graphs: list[list[int] | None] = [[1, 2, 3, 4], [4, 8], [], None]
    assert few_sizes((1, 3), [{"graph_batch_sizes": sizes} for sizes in graphs]) == [1, 3, 4]


@pytest.mark.parametrize(("sampling", "exact", "needs"), [
    ("pytorch", True, False), ("pytorch", False, True), ("flashinfer", True, True),
])  # fmt: skip
def test_torchs_sampler_waits_for_no_compiler(
    sampling: str, exact: bool, needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.arg_groups import overrides, serving_hook

    monkeypatch.setattr(overrides, "resolved_view", lambda server_args: SimpleNamespace(sampling_backend=sampling))
    monkeypatch.setattr(serving_hook, "ssl_verify_of", lambda server_args: True)
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: SimpleNamespace(num_dp_ranks=1))
    monkeypatch.setattr(runtime_context, "get_serving", lambda: SimpleNamespace(api_key=None, admin_api_key=None))
    monkeypatch.setattr(warm_up, "reading_of", lambda server_args: SimpleNamespace(config=SimpleNamespace(exact=exact)))
    assert warm_up._Server(SimpleNamespace(url=lambda: ""))._needs_compiler is needs


def test_ours_runs_before_sglangs_and_its_failure_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def fails(server_args: Any) -> bool:
        order.append("ours")
        raise RuntimeError("no such thing")

    def sglangs(server_args: Any) -> bool:
        order.append("sglang's")
        return True

    def wait(server_args: Any, launch_callback: Any = None, execute_warmup_func: Any = sglangs) -> None:
        order.append("ready" if execute_warmup_func(server_args) else "not ready")

    monkeypatch.setattr(warm_up, "_wanted", fails)
    wait_and_warm_up(wait, server_args=SimpleNamespace())
    assert order == ["ours", "sglang's", "ready"]


class Noted(warm_up._Server):
    """Records the requests; the scheduler covers a size at the second attempt."""

    def __init__(self, cached: int = 16, **about: Any) -> None:
        """*about* differs in the server's state."""
        self._replicas, self._needs_compiler, self._draw = 2, True, random.Random(0)
        self.sent: list[tuple[str, Any]] = []
        self.cached, self.about = cached, about

    @property
    def loads(self) -> list[dict[str, Any]]:
        return [body for path, body in self.sent if path == "/generate"]

    def _set(self, value: int) -> None:
        self.sent.append((WARM_UP_KEY, value))

    def _send(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.sent.append((path, body))
        if path == "/generate":
            return SimpleNamespace(json=lambda: [{"meta_info": {"cached_tokens": self.cached}}])
        return answered([1] if len(self.loads) >= 2 else [], **self.about)


def answered(covered: Sequence[int] = (), **about: Any) -> Any:
    """Return the answer of a server that has warmed up the batch sizes *covered*."""
    startup = {
        "tiers": [{"graph_batch_sizes": [1]}, {"graph_batch_sizes": None}],
        "warmed_batch_sizes": covered,
        "warm_up_rounds": 7,
        "warm_up_seconds": None,
    }
    state = {
        "adaptive": {"tiers": [0, 3], "startup": startup, "off": {}},
        "effective_max_running_requests_per_dp": 8,
        "grammar_backend": "xgrammar",
        "skip_tokenizer_init": False,
        "speculative_use_rejection_sampling": False,
        **about,
    }
    info = {"internal_states": [state], "max_req_input_len": 90}
    return SimpleNamespace(json=lambda: info, raise_for_status=lambda: None)


def test_a_size_is_tried_again_until_every_depth_has_run_and_the_end_is_always_said() -> None:
    server = Noted()
    server.warm_up()
    loads = server.loads
    # One request per replica; passes with log probabilities, penalties, a grammar, both samplings; prefills of both
    # lengths, first without a cached prefix.
    assert [len(load["input_ids"]) for load in loads] == [2] * 20
    assert [load["sampling_params"]["max_new_tokens"] for load in loads] == [3, 12, 3, 3, 3, 3, 3] + [1] * 13
    assert [load["sampling_params"]["temperature"] for load in loads] == [0.0] * 5 + [1.0, 1.0] + [0.0] * 13
    assert [place for place, load in enumerate(loads) if "presence_penalty" in load["sampling_params"]] == [3]
    assert [place for place, load in enumerate(loads) if "regex" in load["sampling_params"]] == [4]
    assert [place for place, load in enumerate(loads) if "top_k" in load["sampling_params"]] == [5]
    assert [load.get("return_logprob", False) for load in loads] == [False, False, True] + [False] * 17
    assert loads[2]["logprob_start_len"] == 0, "of the prompt, too"
    lengths = [3, 8, 9, 16, 32, 33]
    assert [[len(ids) for ids in load["input_ids"]] for load in loads[8:14]] == [[length] * 2 for length in lengths]
    first_tokens = [tuple(ids[:8]) for load in loads[:7] + loads[8:14] for ids in load["input_ids"]]
    assert len(set(first_tokens)) == len(first_tokens)  # not in the prefix cache
    filled, *cached = [load["input_ids"] for load in loads[7:8] + loads[14:]]
    assert [[len(ids) - 45 for ids in prompts] for prompts in cached] == [[length] * 2 for length in lengths]
    assert {tuple(ids[:45]) for prompts in (filled, *cached) for ids in prompts} == {tuple(filled[0][:45])}
    assert [value for path, value in server.sent if path == WARM_UP_KEY] == [1, 1, 1, 1, 1, 1, 0]
    assert [path for path, _ in server.sent][-2] == "/flush_cache?timeout=10.0"


@pytest.mark.parametrize("about", [{"grammar_backend": "none"}, {"skip_tokenizer_init": True}])
def test_a_server_without_grammars_gets_no_request_with_one(about: dict[str, Any]) -> None:
    server = Noted(**about)
    server.warm_up()
    assert not any("regex" in load["sampling_params"] for load in server.loads)


def test_without_cached_tokens_no_further_prompt_begins_with_a_prefix() -> None:
    server = Noted(cached=0)
    server.warm_up()
    assert [len(load["input_ids"][0]) for load in server.loads[-8:]] == [46, 3, 8, 9, 16, 32, 33, 48]


@pytest.mark.parametrize(("accepts_by_probability", "temperatures"), [(True, {0.0, 1.0}), (False, {0.0})])
def test_kernels_without_a_module_do_not_wait_for_the_compiler(
    accepts_by_probability: bool, temperatures: set[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's verify with rejection sampling is a Triton kernel for each number of steps."""
    server = Noted(speculative_use_rejection_sampling=accepts_by_probability)
    monkeypatch.setattr(server, "_can_sample", lambda states, compiler: False)
    server.warm_up()
    parameters = [load["sampling_params"] for load in server.loads]
    assert {sampling["temperature"] for sampling in parameters} == temperatures
    assert not any("top_k" in sampling for sampling in parameters)


def test_the_end_is_said_when_a_request_fails() -> None:
    server = Noted()

    def broken(*_: Any) -> None:
        raise OSError("gone")

    server._generate = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        server.warm_up()
    assert server.sent[-1] == (WARM_UP_KEY, 0)


class Asking(Noted):
    _url, _verify, _key, _admin_key, _is_up = "", True, None, None, False
    _send = warm_up._Server._send


@pytest.mark.parametrize("how", ["told", "gone"])
def test_both_stop_when_the_server_ends(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server waits for its warm-up when it ends, and SGLang's would look for the server for two minutes."""
    manager, asked = SimpleNamespace(gracefully_exit=False), []
    monkeypatch.setattr(http_server, "get_global_state", lambda: SimpleNamespace(tokenizer_manager=manager))
    monkeypatch.setattr(warm_up, "_wanted", lambda server_args: True)
    monkeypatch.setattr(warm_up, "_one_at_a_time", lambda server_args: nullcontext())
    monkeypatch.setattr(warm_up, "_Server", lambda server_args: server)

    def request(method: str, url: str, **_: Any) -> Any:
        asked.append(url)
        if how == "gone" and len(asked) > 5:
            raise requests.exceptions.ConnectionError("refused")
        manager.gracefully_exit = how == "told" and len(asked) > 5
        return answered()

    server = Asking()
    monkeypatch.setattr(requests, "request", request)

    def wait(server_args: Any, execute_warmup_func: Any = lambda server_args: pytest.fail("SGLang's runs")) -> None:
        assert not execute_warmup_func(server_args)

    with caplog.at_level("INFO"):
        wait_and_warm_up(wait, server_args=SimpleNamespace())
    assert len(asked) <= 8, "no request after the end, but to see whether it is one"
    assert "adaptive: the warm-up stops, because the server ends" in caplog.messages
    assert "the warm-up failed" not in caplog.text
