"""The phases of a run: each drives servers that were left running, and writes one JSON file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.served import equality, loop, overhead
from benchmarks.served.arrivals import arrivals
from benchmarks.served.contenders import BUDGET, BUDGETS, REPLAY, SCENES, SMOLLM2, TIMED, TRACE, Place, attached
from benchmarks.served.questions import Question, block, questions
from benchmarks.served.race import OURS, Race, one_pass
from benchmarks.served.report import Report
from benchmarks.server.passes import Contender
from benchmarks.server.servers import Running
from sglang_adaptive import traces

REAL = "SmolLM2-135M-Instruct and its EAGLE-3 draft, Spec-Bench's questions; acceptance is the models' own"
REPLAYED = "a model's shape, dummy weights; acceptance is replayed from a trace, position by position"
VOCABULARY = 200


@dataclass(frozen=True)
class Asked:
    """What the command line asks of one phase."""

    place: Place
    results: Path
    name: str
    """Of the result's file."""

    budget: float
    """Seconds for everything."""

    batches: tuple[int, ...]
    requests: dict[int, int]
    """By batch size, the requests of a pass; others get four times their batch size."""

    tokens: int
    error: float
    contenders: tuple[str, ...]
    depths: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    """Steps and budget, held in turn."""

    context: int
    rate: float | None
    """Poisson arrivals: requests a second; None takes half of what no speculation serves at batch 16."""

    argv: tuple[str, ...]

    def requests_of(self, batch: int) -> int:
        return self.requests.get(batch, 4 * batch)

    def plan(self) -> dict[str, Any]:
        """Return the numbers of the run, for its file."""
        batches = {str(size): self.requests_of(size) for size in self.batches}
        return {"requests_of_a_pass_by_batch": batches, "tokens": self.tokens, "budget_seconds": self.budget}


def greedy(asked: Asked) -> None:
    """Every contender in turn at every batch size, greedily."""
    _text(asked, 0.0)


def sampled(asked: Asked) -> None:
    """The same at temperature 1."""
    _text(asked, 1.0)


def replay(asked: Asked) -> None:
    """A shape: questions of the trace at random, each as long as it was, contexts of ``--context`` tokens."""
    end = time.monotonic() + asked.budget
    servers, report = _begin(asked, REPLAYED, {"trace": TRACE.name, "context": asked.context, "pair": asked.place.pair})
    trace = traces.read(TRACE)
    order = np.random.default_rng(0).permutation(len(trace.category)).tolist()

    def make_of(number: int, size: int) -> loop.Make:
        chosen = block(number, asked.requests_of(size), len(order))

        def make(request: int, place: int) -> loop.Body:
            question = order[chosen[request]]
            tokens = min(int(trace.length[question]) + 1, asked.tokens)
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            sampling["custom_params"] = {"trace": question}
            return {"input_ids": context_of(place, asked.context), "sampling_params": sampling}

        return make

    contenders = _contenders(servers, asked)
    ours = next((one for one in contenders if one.name == BUDGETS), None)
    _race(asked, contenders, make_of, report, end, OURS if ours is None else BUDGETS)
    if ours is not None:
        report.content["verify_budget"] = (ours.server.adaptive() or {}).get("verify_budget")
        report.write()


def poisson(asked: Asked) -> None:
    """Requests that arrive at random, streamed: latencies, of every contender on the same arrivals."""
    end = time.monotonic() + asked.budget
    servers, report = _begin(asked, REAL, {"temperature": 0})
    make = _make_text(asked, 0.0, lambda: list(range(480)))
    rate = asked.rate or _half_load(asked)
    report.content["plan"]["requests_a_second"] = rate
    for server in servers:
        loop.run(server.client.url, 16, 16, make)
    arrivals(servers, rate, make, report, end)


def equal(asked: Asked) -> None:
    """Whether our greedy output is that of no speculation, on every question, while the steps change."""
    servers, report = _begin(asked, REAL, {"temperature": 0})
    equality.compare(_named(servers, "none"), _named(servers, OURS), _questions(asked), asked, report)


def host_time(asked: Asked) -> None:
    """What our part of a round takes on the host, by hook; and our server against stock SGLang at the same steps."""
    end = time.monotonic() + asked.budget
    servers, report = _begin(asked, REAL, {"temperature": 0}, more=(TIMED,))
    make_of = _make_blocks(asked, 0.0)
    overhead.measure(_named(servers, TIMED), asked, make_of, report)
    ours = _named(servers, OURS)
    stock = [server for server in servers if server.name.startswith("static-")]
    held = [Contender(ours, int(server.name.removeprefix("static-"))) for server in stock]
    for server, one in zip(stock, held, strict=True):
        if time.monotonic() < end:
            pair = [Renamed(server, None, "stock"), Renamed(one.server, one.steps, "held")]
            part = Part(report, f"steps {one.steps}")
            share = time.monotonic() + (end - time.monotonic()) / (len(stock) - stock.index(server))
            _race(asked, pair, make_of, part, share, ours="held")
    ours.force(None)


PHASES: dict[str, Callable[[Asked], None]] = {
    "greedy": greedy, "sampled": sampled, "poisson": poisson, "equal": equal, "host-time": host_time, "replay": replay,
}  # fmt: skip


def scene_of(phase: str) -> str:
    """Return which servers a phase drives."""
    return REPLAY if phase == "replay" else SMOLLM2


@dataclass(frozen=True)
class Renamed(Contender):
    """A contender that a comparison knows by another name."""

    title: str = ""

    @property
    def name(self) -> str:
        return self.title


@dataclass(frozen=True)
class Configured(Contender):
    """A contender on a server that takes another configuration, or a held pair, for each."""

    title: str = ""
    budget: int = 0
    """Drafts verified of a request while steps are held; 0 for all."""
    budgets: bool = False
    """Whether the policy chooses them."""

    @property
    def name(self) -> str:
        return self.title or super().name

    def take_over(self) -> None:
        config = dict(self.server.policy.config or {})
        options = {**config.get("throughput", {}), "verify_budget": self.budgets}
        if self.steps is None:
            self.server.client.configure({**config, "throughput": options})
        super().take_over()
        self.server.client.force_budget(self.budget)


class Part(Report):
    """A named part of a report, for a second race in the same file."""

    def __init__(self, whole: Report, name: str) -> None:
        self._whole = whole
        self.content = whole.content.setdefault(name, {})

    def note(self, line: str) -> None:
        self._whole.note(line)

    def write(self) -> None:
        self._whole.write()


def context_of(place: int, tokens: int) -> list[int]:
    """Return the prompt of a place in the batch: always the same, so that SGLang's radix cache has it."""
    return np.random.default_rng(place).integers(0, VOCABULARY, tokens).tolist()


def _text(asked: Asked, temperature: float) -> None:
    end = time.monotonic() + asked.budget
    servers, report = _begin(asked, REAL, {"temperature": temperature})
    _race(asked, _contenders(servers, asked), _make_blocks(asked, temperature), report, end)


def _begin(
    asked: Asked, what: str, more_plan: dict[str, Any], more: Sequence[str] = ()
) -> tuple[list[Running], Report]:
    names = [*(asked.contenders or SCENES[asked.place.scene]), *more]
    report = Report(asked.results, asked.name, what, {**asked.plan(), **more_plan}, asked.argv)
    servers = attached(asked.place, names)
    report.describe(servers)
    for name in set(names) - {server.name for server in servers}:
        report.note(f"without {name}: it does not run")
    report.write()
    return servers, report


def _contenders(servers: Sequence[Running], asked: Asked) -> list[Contender]:
    """Return the servers, and behind those without speculation the depths that ours is to hold."""
    ours = next((server for server in servers if server.name == OURS), None)
    held = [Contender(ours, steps) for steps in asked.depths] if ours else []
    first = [Contender(server) for server in servers if not server.policy.speculate]
    for server in (server for server in servers if server.name == BUDGETS):
        return [*first, *_on_one_server(server, asked)]
    for server in (server for server in servers if server.name.startswith(BUDGET)):
        kept = int(server.name.removeprefix(BUDGET))
        if not held:  # A large target leaves room for one server: the budget does not touch its rounds of fewer steps.
            held += [Contender(server, steps) for steps in asked.depths if steps <= kept]
        held += [Renamed(server, steps, f"{server.name}-of-{steps}") for steps in asked.depths if steps > kept]
    free = [server for server in servers if server.policy.speculate and not server.name.startswith(BUDGET)]
    return [*first, *held, *map(Contender, free)]


def _on_one_server(server: Running, asked: Asked) -> list[Contender]:
    """Return what one server stands for in turn: depths and pairs that it holds, and our policy without and with."""
    held = [Configured(server, steps) for steps in asked.depths]
    pairs = [Configured(server, steps, f"{steps}-verified-{budget}", budget) for steps, budget in asked.pairs]
    return [*held, *pairs, Configured(server, None, OURS), Configured(server, None, BUDGETS, budgets=True)]


def _race(
    asked: Asked,
    contenders: Sequence[Contender],
    make_of: Callable[[int, int], loop.Make],
    report: Report,
    end: float,
    ours: str = OURS,
) -> None:
    """Warm up, one after the other, and then take turns."""

    def serve(contender: Contender, size: int, number: int) -> dict[str, Any]:
        return one_pass(contender, asked.requests_of(size), size, make_of(number, size))

    begin = time.monotonic()
    for size in asked.batches:
        for contender in contenders:
            try:
                contender.take_over()
                loop.run(contender.server.client.url, size, size, make_of(0, size), patience=60)
            except Exception as problem:
                report.note(f"warm-up of {contender.name}, batch {size}: {type(problem).__name__}: {problem}")
    print(f"  warmed up in {time.monotonic() - begin:.1f} s", flush=True)
    Race(contenders, asked.batches, serve, report, end=end, error=asked.error, ours=ours).run()
    report.write()


def _questions(asked: Asked) -> list[Question]:
    return questions(asked.place.target, asked.place.folder / "prompts.json")


def _make_text(asked: Asked, temperature: float, chosen: Callable[[], list[int]]) -> loop.Make:
    found, order = _questions(asked), chosen()

    def make(request: int, place: int) -> loop.Body:
        sampling = {"temperature": temperature, "max_new_tokens": asked.tokens, "ignore_eos": True}
        return {"input_ids": found[order[request % len(order)]].ids, "sampling_params": sampling}

    return make


def _make_blocks(asked: Asked, temperature: float) -> Callable[[int, int], loop.Make]:
    total = len(_questions(asked))
    return lambda number, size: _make_text(asked, temperature, lambda: block(number, asked.requests_of(size), total))


def _named(servers: Sequence[Running], name: str) -> Running:
    found = next((server for server in servers if server.name == name), None)
    if found is None:
        raise ValueError(f"{name} does not run")
    return found


def _half_load(asked: Asked) -> float:
    """Return half of the requests a second that no speculation served at batch 16 in the greedy phase."""
    try:
        turns = json.loads((asked.results / "greedy.json").read_text())["batches"]["16"]
        return 0.5 * sum(turn["passes"]["none"]["wall"] for turn in turns) / len(turns) / asked.tokens
    except (OSError, KeyError, ZeroDivisionError) as problem:
        raise ValueError(f"--rate is needed: the greedy phase says nothing of batch 16 ({problem!r})") from None
