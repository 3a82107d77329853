"""Check two ranks on two GPUs: equal steps in every round, equal text, and rates. See benchmarks/README.md.

equality          greedy text with attention DP at every depth, switching and by policy, with unequal load on the ranks
agreement         thousands of rounds of attention DP under changing load, with a wrong clock on one rank
tensor-parallel   the same for two ranks that run one batch
rates             tokens per second with attention DP: the policy, each number of steps held, and no speculation

Each phase updates RESULTS/PHASE.json with every new result. An error ends only its own phase.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.architectures import ADAPTIVE, FA3, REFERENCE, Family, family_server
from benchmarks.harness import load, round_log, shapes, start, texts
from benchmarks.harness.acceptance import DEEPEST, Counted, Declared, Process
from benchmarks.harness.load import VOCABULARY, ClosedLoop, Noise, greedy
from benchmarks.harness.results import REAL, SIMULATED, Report, command_parser
from benchmarks.harness.shapes import TINY_MOE, TINY_MOE_ARGUMENTS, TINY_MOE_PAIR, TWO_RANKS_ON_CPU
from benchmarks.harness.start import POLICIES, Host, Server
from benchmarks.harness.turns import Pass, Race, mean_rates, rates_by_name
from sglang_adaptive.client import Client

RANKS = 2
TP = ("--tp-size", str(RANKS))
DP = (*TP, "--dp-size", str(RANKS), "--enable-dp-attention")
# Servers that load side by side leave a server's ranks with unequal memory, which SGLang would reject.
SIDE_BY_SIDE = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
LARGE = "qwen3-30b-a3b"
SIZES = ("1", "2", "4", "8", "16", "32", "48")
"""A rank's batch sizes with CUDA graphs."""

LIE = 3.0
SMALL = {"qwen3-moe": shapes.QWEN3_MOE, "deepseek-v3": shapes.DEEPSEEK_V3}
DEPTHS = (0, 1, 2, 3, 5)
_SMALL = (
    *FA3, *DP, "--context-length", "4096", "--chunked-prefill-size", "1024", "--max-total-tokens", "65536",
    "--max-running-requests", "64",
)  # fmt: skip
HUNG_SECONDS = 60.0


COUNTED = (
    "policy", "active", "reason", "launch_steps", "tiers", "switches", "rounds_by_tier", "drafted_by_tier",
    "accepted_by_tier", "tokens_by_tier", "degraded", "degraded_reason", "startup", "rounds", "probes", "dp_rank",
)  # fmt: skip
"""The parts of a rank's state that a file keeps."""


class Hung(OSError):
    """No rank has run a round for too long."""


def launched(server: Server) -> dict[str, Any]:
    """Return how *server* was started."""
    return {name: told for name, told in server.described().items() if name in ("command", "plugins", "startup")}


def counted(server: Server) -> list[dict[str, Any]]:
    """Return what each rank of *server* has counted."""
    return [{name: state.get(name) for name in COUNTED} for state in server.states()]


# -- servers --------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Starts the servers in *folder*, all at once on GPUs, one after the other on the CPU engine.

    adaptive     a small mixture of experts with weights under which layers matter, real acceptance; logs its rounds
    reference    the same without speculation
    liar         the small shape with simulated acceptance, the second rank's clock lies; logs its rounds
    liar-tp      the same with only tensor parallelism
    rated        the large shape with simulated acceptance; logs its rounds
    none         the large shape without speculation
    """

    folder: Path
    cpu: bool
    pair: str = "qwen3-moe"
    layers: int | None = None
    """Layers of the large shape; None for all."""
    arguments: Sequence[str] = ()
    """Additional arguments of every server."""
    servers: dict[str, Server] = field(default_factory=dict)

    def begin(self, name: str) -> Server:
        """Launch a server."""
        server = self.servers[name] = self.made(name)
        server.launch()
        return server

    @contextmanager
    def up(self, name: str, deadline: float) -> Iterator[Server]:
        """Yield server *name* once it answers; stop it at the end. Raises NotStarted, by *deadline* at the latest."""
        server = self.servers.get(name) or self.begin(name)
        try:
            server.wait(deadline)
            yield server
        except (OSError, TimeoutError):
            self.stacks(server)
            raise
        finally:
            server.stop()

    def log(self, name: str) -> Path:
        """Return the path of a server's round logs."""
        return self.folder / f"{name}-rounds-of-rank-"

    def stacks(self, server: Server) -> None:
        """Make the server's processes write their stacks to its log, to see where a rank waits."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                title = Path("/proc", pid, "cmdline").read_bytes()
                if os.getpgid(int(pid)) == server.pid and b"scheduler" in title:
                    os.kill(int(pid), round_log.STACKS)
        time.sleep(2.0)

    def made(self, name: str) -> Server:
        """Return an unlaunched server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = {**SIDE_BY_SIDE, **(TWO_RANKS_ON_CPU if self.cpu else {})}
        logging: dict[str, str] = {}
        if name not in ("reference", "none"):
            lie = LIE if name.startswith("liar") else 0.0
            logging = round_log.environment(self.folder / "plugin-of-rounds", self.log(name), lie)
        if name in ("adaptive", "reference"):
            family = replace(self._family(name), variables=variables)
            kind = REFERENCE if name == "reference" else ADAPTIVE
            server = family_server(family, self.folder, kind, self.cpu, **logging)
            server.policy = replace(server.policy, name=name)
            server.log = self.folder / f"{name}.log"
            return server
        # Rates are measured with loaded kernels; a CPU has none.
        config = {"policy": "throughput", "warm_up": name == "rated" and not self.cpu}
        own = POLICIES["none"] if name == "none" else replace(POLICIES["throughput"], config=config)
        policy = replace(own, name=name, variables=variables)
        server = start.policy_server(policy, self._host(name), self.folder, variables=logging)
        if name != "liar-tp":
            for rank in range(1, RANKS):
                Process(server.process.of_rank(rank), create=True)
        return server

    def _family(self, name: str) -> Family:
        target = TINY_MOE if self.cpu else SMALL[self.pair]
        own_layers = "num_nextn_predict_layers" in target
        draft = dict(TINY_MOE_PAIR)["-eagle3"] if self.cpu else shapes.eagle3_of(target)
        return Family(
            name, self.pair, *(("EAGLE", "NextN") if own_layers else ("EAGLE3", "EAGLE-3")), target,
            None if own_layers else draft,
            (*((*TINY_MOE_ARGUMENTS, *DP) if self.cpu else _SMALL), *self.arguments), depths=DEPTHS, warm_up=True,
        )  # fmt: skip

    def _host(self, name: str) -> Host:
        models, ranks = self.folder / "models", TP if name == "liar-tp" else DP
        if self.cpu:
            target, draft = (str(shapes.write(models / f"tiny{end}", one)) for end, one in TINY_MOE_PAIR)
            return Host(target, draft, 64, cpu=True, extra=(*TINY_MOE_ARGUMENTS, *ranks, *self.arguments))
        pair = "small" if name.startswith("liar") else LARGE
        if pair == LARGE:
            shapes.write_pair(models, LARGE, **({"num_hidden_layers": self.layers} if self.layers else {}))
        else:
            shapes.write(models / pair, shapes.QWEN3_MOE)
            shapes.write(models / f"{pair}-eagle3", shapes.eagle3_of(shapes.QWEN3_MOE))
        more = ("--cuda-graph-bs-decode", *SIZES, "--watchdog-timeout", "300", "--disable-flashinfer-autotune")
        return Host(
            str(models / pair), str(models / f"{pair}-eagle3"), RANKS * int(SIZES[-1]),
            extra=(*FA3, *ranks, *more, *self.arguments), kv_tokens=120_000 if pair == LARGE else 60_000,
        )  # fmt: skip


# -- equality -------------------------------------------------------------------------------------------------------

REQUESTS, NEW_TOKENS = 24, 48
SWITCH_SECONDS = 0.02
LAYOUTS: dict[str, Callable[[int], int]] = {
    "balanced": lambda at: at % 2,
    "skewed": lambda at: int(at % 8 == 0),
    "rank 1 idle": lambda at: 0,
    "rank 0 idle": lambda at: 1,
}
"""The rank of each request, by name."""


def ask(server: Client, wanted: Sequence[Sequence[int]], layout: str) -> list[list[int]]:
    """Send *wanted*, each to its rank of *layout*, all at once, and return the greedy outputs."""
    ranks = [LAYOUTS[layout](at) for at in range(len(wanted))]
    found: list[list[int]] = [[] for _ in wanted]

    def of_rank(rank: int) -> None:
        own = [at for at, chosen in enumerate(ranks) if chosen == rank]
        body = {"input_ids": [list(wanted[at]) for at in own], "sampling_params": greedy(NEW_TOKENS)}
        for at, answer in zip(own, server.post("/generate", {**body, "routed_dp_rank": rank}), strict=True):
            found[at] = list(answer["output_ids"])

    with ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(of_rank, sorted(set(ranks))))
    return found


def collect(
    server: Client, wanted: Sequence[Sequence[int]], vocabulary: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the adaptive server's texts: at every held depth, deepest first, while switching, and by its policy.

    During the last two the ranks also serve long prompts, bursts and aborted requests.
    """
    runs: list[dict[str, Any]] = []

    def add(how: str, layout: str) -> None:
        runs.append({"how": how, "layout": layout, "outputs": ask(server, wanted, layout)})
        say(f"{how}, {layout}")

    for steps in sorted(DEPTHS, reverse=True):
        server.force_steps(steps)
        for layout in LAYOUTS:
            add(f"depth {steps}", layout)
    server.force_steps(None)
    for how, around in (("switching", texts.switching(server, DEPTHS, SWITCH_SECONDS)), ("policy", nullcontext())):
        with around:
            for layout in LAYOUTS:
                add(how, layout)
    for rank, layout in ((1, "rank 1 idle"), (0, "rank 0 idle")):
        with Noise(server, rank, vocabulary) as noise, texts.switching(server, DEPTHS, SWITCH_SECONDS):
            add(f"noise on rank {rank}", layout)
        runs[-1]["noise"] = noise.counts()
    return runs


def equality(run: Run, report: Report) -> str:
    """Collect the adaptive server's texts, then judge them by the reference, which need not run at the same time."""
    vocabulary = TINY_MOE["vocab_size"] if run.place.cpu else shapes.VOCABULARY
    wanted = texts.prompts(REQUESTS, vocabulary)
    report.add(acceptance=REAL, new_tokens=NEW_TOKENS, layouts=list(LAYOUTS))
    with run.place.up("adaptive", run.end) as server:
        report.add(adaptive_before=launched(server))
        runs = collect(server.client, wanted, vocabulary, report.say)
        agreed = round_log.compare(round_log.logs(run.place.log("adaptive")))
        report.add(agreement=agreed, adaptive=counted(server))
    with run.place.up("reference", run.end) as server:
        judge = texts.Judge(server.client, wanted)
        for layout in reversed(LAYOUTS):  # differences are counted against the first
            judge.expect(layout, ask(server.client, wanted, layout))
        report.add(reference=judge.about())
        verdicts: list[dict[str, Any]] = []
        for one in runs:
            verdicts.append({**judge.judge(one["layout"], one.pop("outputs")), **one})
            report.add(runs=verdicts)
    different = sum(one[texts.DIFFERENT] > 0 for one in verdicts)
    if not agreed["identical"]:
        return "the ranks ran different steps"
    return f"{different} runs with different texts" if different else "well"


# -- agreement ------------------------------------------------------------------------------------------------------

LOADS = ((8, 8), (16, 1), (0, 12), (24, 24), (2, 16), (12, 0), (1, 1), (0, 1))
"""Requests of each rank, in turn; ranks that run one batch have all of them."""

ACCEPTANCE = (0.9, 0.3, 0.7, 0.05, 0.8)
PHASE_ROUNDS = 130
REQUEST_TOKENS = 300
FORCED_EVERY, NOISY_EVERY = 5, 3
"""One phase in this many forces random depths, or disturbs a rank."""


def agreement(run: Run, report: Report, name: str = "liar") -> str:
    """Serve ``--rounds`` rounds with the server whose second rank's clock lies."""
    report.add(acceptance=SIMULATED)
    with run.place.up(name, run.end) as server:
        report.add(server=launched(server))
        _serve(server, run, report, name)
        report.add(ranks=counted(server))
    found = report.content
    if not found["identical"] or found["errors"] or any(found["degraded"]):
        return "not alike"
    return "well" if found["rounds"] >= run.given.rounds else "out of time"


def tensor_parallel(run: Run, report: Report) -> str:
    """The same for ranks that run one batch."""
    return agreement(run, report, "liar-tp")


def _serve(server: Server, run: Run, report: Report, name: str) -> None:
    log, together = run.place.log(name), name == "liar-tp"
    begun, draw, phase = len(round_log.logs(log)[0]), random.Random(1), 0
    client = Client(server.client.host, server.client.port, load.NOISE_PATIENCE)
    depths = server.states()[0]["tiers"]
    with ExitStack() as stack:
        loops = [
            stack.enter_context(ClosedLoop(server.client, 0, REQUEST_TOKENS, seed=rank + 1, rank=rank))
            for rank in ([None] if together else range(RANKS))
        ]
        while (done := len(round_log.logs(log)[0]) - begun) < run.given.rounds and time.monotonic() < run.end:
            server.process.declared = Declared(ACCEPTANCE[phase % len(ACCEPTANCE)])
            many = LOADS[phase % len(LOADS)]
            for loop, each in zip(loops, [sum(many)] if together else many, strict=True):
                loop.resize(each)
            rank = None if together else draw.randrange(RANKS)
            forced = phase % FORCED_EVERY == 3
            noisy = phase % NOISY_EVERY == 1
            with (
                texts.switching(client, depths, SWITCH_SECONDS) if forced else nullcontext(),
                Noise(client, rank, VOCABULARY, phase) if noisy else nullcontext(),
            ):
                _until_logged(log, begun + done + PHASE_ROUNDS, run.end, lambda: run.place.stacks(server))
            phase += 1
            report.add(phases=phase, **round_log.compare(round_log.logs(log)))
        errors = [error for loop in loops for error in loop.errors]
    told = server.states()
    report.add(
        **round_log.compare(_ended(log)), errors=errors[:5], degraded=[state["degraded"] for state in told],
        steps_of_ranks=[state["current_steps"] for state in told],
    )  # fmt: skip


def _until_logged(log: Path, rounds: int, end: float, hung: Callable[[], None]) -> None:
    """Wait until both ranks have logged *rounds*, or until *end*. Raises Hung."""
    last, at = -1, time.monotonic()
    while (now := min(map(len, round_log.logs(log)))) < rounds and time.monotonic() < end:
        if now != last:
            last, at = now, time.monotonic()
        if time.monotonic() - at > HUNG_SECONDS:
            hung()
            raise Hung(f"no round for {HUNG_SECONDS:.0f} s after {now}")
        time.sleep(0.1)


def _ended(log: Path) -> list[list[tuple[int, int]]]:
    """Return the logs once no round was added for a second; without requests no rank runs one."""
    found = round_log.logs(log)
    for _ in range(20):
        time.sleep(1.0)
        again = round_log.logs(log)
        if list(map(len, again)) == list(map(len, found)):
            break
        found = again
    return again


# -- rates ----------------------------------------------------------------------------------------------------------

POLICY, HELD, CHANGE = "policy", "static-", "changing"
STATIC = [f"{HELD}{steps}" for steps in (0, 1, 2, 3, 5, 7)]
SETTLED = 10
"""Rounds that a contender runs at one depth before it is measured."""

SETUP_SECONDS = 3.0
"""Seconds until all requests of a load decode."""


@dataclass(frozen=True)
class Scene:
    """A load: requests of each rank, and P(a draft is accepted | those before it were)."""

    name: str
    requests: tuple[int, int]
    acceptance: float


CONSTANT = (
    Scene("balanced, 4 each", (4, 4), 0.8),
    Scene("balanced, 32 each", (32, 32), 0.6),
    Scene("skewed, 48 and 4", (48, 4), 0.7),
    Scene("skewed, 4 and 32, hard text", (4, 32), 0.35),
    Scene("one idle", (16, 0), 0.75),
)
CHANGING = (
    Scene("few, easy text", (2, 2), 0.9),
    Scene("many, hard text", (48, 48), 0.25),
    Scene("one busy", (32, 1), 0.75),
    Scene("one idle, hard text", (0, 4), 0.4),
)


@dataclass(frozen=True)
class Times:
    """Seconds of the parts of a measurement, and new tokens per request."""

    window: float
    learn: float = 2.5
    """For the policy, before it is measured."""
    settle: float = 0.3
    phase: float = 2.0
    tokens: int = 2000


@dataclass(frozen=True)
class Named:
    """The policy, a held number of steps, or the server without speculation."""

    name: str

    def depths(self) -> Sequence[int]:
        """Return the depths that it may run; a round without speculation has depth 0."""
        return [int(self.name.removeprefix(HELD))] if self.name.startswith(HELD) else range(DEEPEST + 1)


class Rated:
    """A server whose rates are measured, and the files into which its ranks count.

    Under constant load a figure is the sum over the ranks of tokens over seconds of decode rounds that follow another
    decode round, both with all of the rank's requests: no prefill on either rank, no round with a free slot. Under
    changing load it is all tokens over all seconds. Tokens are the expected tokens of the rounds under the declared
    acceptance. The policy first runs unmeasured to learn the load: in the first turn it knows only this load, in the
    second it has also learned from held steps.
    """

    def __init__(self, server: Server, times: Times, report: Report, scenes: int) -> None:
        self._server, self._times, self._report = server, times, report
        self._files = [Process(server.process.of_rank(rank)) for rank in range(RANKS)]
        self._constant = {scene.name: scene for scene in CONSTANT[:scenes]}
        self._changing = CHANGING[:scenes]
        self._loops: list[ClosedLoop] = []

    def race(self, taking_part: Callable[[str, int], Sequence[str]], end: float) -> None:
        """Measure everything once, then again in reverse order; the second turn is cut short when time runs out."""
        earlier = dict(self._report.content["turns"])

        def after() -> None:
            turns = {case: [*earlier.get(case, ()), *taken] for case, taken in race.turns.items()}
            self._report.content |= {"turns": turns, "ratios": ratios(turns)}

        race = Race(
            lambda case, number: [Named(name) for name in taking_part(case, number)], [*self._constant, CHANGE],
            lambda one, case, number: self._changed(one) if case == CHANGE else self._window(one, case), self._report,
            end=end, least=2, most=2, around=self._load, after=after,
        )  # fmt: skip
        race.run()

    @contextmanager
    def _load(self, case: str) -> Iterator[None]:
        scene = self._constant.get(case, self._changing[-1])
        with ExitStack() as stack:
            self._loops = [
                stack.enter_context(ClosedLoop(self._server.client, many, self._times.tokens, seed=rank + 1, rank=rank))
                for rank, many in enumerate(scene.requests)
            ]
            self._wait_for(lambda: all(
                file.read().batch_size >= many - many // 8
                for file, many in zip(self._files, scene.requests, strict=True)
            ))  # fmt: skip
            if case != CHANGE:
                self._declare(scene)
            yield
            errors = [error for loop in self._loops for error in loop.errors]
            if errors:
                raise OSError(f"{len(errors)} requests failed: {errors[0]}")

    def _declare(self, scene: Scene) -> None:
        self._server.process.declared = Declared(scene.acceptance)
        for file, many in zip(self._files, scene.requests, strict=True):
            file.full_from = many

    def _hold(self, one: Named) -> None:
        """Hold its steps, or release them for the policy; a server without speculation needs neither."""
        if self._server.policy.ours:
            self._server.force(None if one.name == POLICY else one.depths()[0])

    def _window(self, one: Named, case: str) -> dict[str, Any]:
        """Run it until its kernels are loaded and the policy, if it is one, knows the load; then measure."""
        self._hold(one)
        before = self._read()
        time.sleep(self._times.learn if one.name == POLICY else self._times.settle)
        self._wait_for(lambda: any(
            each.rounds_by_depth[steps] >= SETTLED for each in self._since(before) for steps in one.depths()
        ))  # fmt: skip
        before, begin = self._read(), time.monotonic()
        time.sleep(self._times.window)
        requests = self._constant[case].requests
        at = max(range(RANKS), key=lambda rank: requests[rank])
        self._wait_for(lambda: self._since(before)[at].full_rounds > 20)
        spent, seconds = self._since(before), time.monotonic() - begin
        return {
            "rate": sum(each.full_expected / each.full_seconds for each in spent if each.full_seconds),
            "wall_tokens_per_second": sum(each.expected for each in spent) / seconds,
            "round_seconds": spent[at].full_seconds / spent[at].full_rounds,
            "steady_rounds": [each.full_rounds for each in spent],
            **{"seconds": seconds, "depths": spent[at].depths(), "switches": spent[at].switches},
        }

    def _changed(self, one: Named) -> dict[str, Any]:
        """Measure it over all changing scenes in turn."""
        self._hold(one)
        before, begin = self._read(), time.monotonic()
        for scene in self._changing:
            self._declare(scene)
            for loop, many in zip(self._loops, scene.requests, strict=True):
                loop.resize(many)
            time.sleep(self._times.phase)
        spent, seconds = self._since(before), time.monotonic() - begin
        if not sum(each.rounds for each in spent):
            raise Hung(f"no round in {seconds:.0f} s")
        return {
            "rate": sum(each.expected for each in spent) / seconds,
            **{"seconds": seconds, "depths": spent[0].depths(), "switches": spent[0].switches},
        }

    def _read(self) -> list[Counted]:
        return [file.read() for file in self._files]

    def _since(self, before: Sequence[Counted]) -> list[Counted]:
        return [now - then for now, then in zip(self._read(), before, strict=True)]

    def _wait_for(self, there: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not there():
            if time.monotonic() - begin > HUNG_SECONDS:
                raise Hung(f"no such load, or no rounds under it, after {HUNG_SECONDS:.0f} s")
            time.sleep(0.02)


def rates(run: Run, report: Report) -> str:
    """Measure the adaptive server's rates, then those of the one without speculation."""
    times = Times(run.given.window)
    if run.place.cpu:
        times = replace(times, phase=4.0, tokens=600)
    scenes = run.given.scenes
    report.add(acceptance=SIMULATED, turns={}, ratios={})

    def taking_part(case: str, number: int) -> list[str]:
        """Under changing load the second turn has only the policy and the two best held steps."""
        best = report.content["ratios"].get(CHANGE, {}).get("best_held", []) if case == CHANGE and number else STATIC
        return [POLICY, *best]

    with run.place.up("rated", run.end) as server:
        report.add(server=launched(server))
        # Without speculation a scene takes one window, and the changing load one turn.
        constant, changing = len(CONSTANT[:scenes]), len(CHANGING[:scenes])
        reserve = constant * (times.window + SETUP_SECONDS) + changing * times.phase + SETUP_SECONDS
        Rated(server, times, report, scenes).race(taking_part, run.end - reserve)
        agreed = round_log.compare(round_log.logs(run.place.log("rated")))
        report.add(agreement=agreed, ranks=counted(server))
    with run.place.up("none", run.end) as server:
        Rated(server, times, report, scenes).race(lambda case, number: ["none"], run.end)
    return "well" if agreed["identical"] else "the ranks ran different steps"


def ratios(by_scene: Mapping[str, Sequence[Pass]]) -> dict[str, Any]:
    """Return each scene's mean rates by contender, and the policy's over those of the best number of steps.

    ``spread`` is the mean difference of a contender's two rates, over their mean.
    """
    found: dict[str, Any] = {}
    for scene, turns in by_scene.items():
        means, each = mean_rates(turns), rates_by_name(turns)
        if not means:
            continue
        held = sorted((name for name in means if name.startswith(HELD)), key=lambda name: -means[name])
        found[scene] = {"tokens_per_second": means}
        twice = [abs(a - b) / means[name] for name in means if len(each[name]) == 2 for a, b in [each[name].values()]]
        if twice:
            found[scene]["spread"] = sum(twice) / len(twice)
        if held:
            found[scene] |= {"best": held[0], "best_held": held[:2]}
        for title, other in (("best", held[0] if held else ""), ("none", "none")):
            if POLICY in means and other in means:
                found[scene][f"policy_over_{title}"] = means[POLICY] / means[other]
    return found


# -- a run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The options of one command, and its end."""

    place: Place
    given: argparse.Namespace
    end: float


PHASES: dict[str, tuple[Callable[[Run, Report], str], Sequence[str]]] = {
    "equality": (equality, ("adaptive", "reference")),
    "agreement": (agreement, ("liar",)),
    "tensor-parallel": (tensor_parallel, ("liar-tp",)),
    "rates": (rates, ("rated", "none")),
}
"""By name, the function that returns a phase's verdict, and its servers."""


def main(argv: Sequence[str]) -> int:
    """Run the phases; 1 if one of them failed, or found texts or ranks that differ."""
    given = parser().parse_args(argv)
    end = start.begin(given)
    place = Place(given.work, given.host == "cpu", given.pair, given.layers, given.server_arguments)
    run, verdicts = Run(place, given, end), {}

    def tried(name: str) -> None:
        report = Report(given.results / f"{name}.json", "attention_dp", argv, phase=name)
        report.say(f"{name}: begins")
        try:
            verdicts[name] = PHASES[name][0](run, report)
        except Exception as error:  # the other phases are still useful
            traceback.print_exc()
            verdicts[name] = "failed"
            report.add(error=f"{type(error).__name__}: {error}"[:2000])
        report.add(verdict=verdicts[name])
        report.say(f"{name}: {verdicts[name]}")

    wanted = given.phases
    if not place.cpu:
        for server in (server for name in wanted for server in PHASES[name][1]):
            place.begin(server)
    # Texts and agreement do not need a quiet GPU; rates do, and a CPU runs one server at a time.
    quiet = [name for name in wanted if place.cpu or name == "rates"]
    with ThreadPoolExecutor() as pool:
        list(pool.map(tried, [name for name in wanted if name not in quiet]))
    for name in quiet:
        tried(name)
    print("; ".join(f"{name}: {verdict}" for name, verdict in verdicts.items()), flush=True)
    return int(any(verdict != "well" for verdict in verdicts.values()))


def parser() -> argparse.ArgumentParser:
    made = command_parser("attention_dp", __doc__)
    start.add_options(made, 545.0)
    add = made.add_argument
    phases = ["equality", "agreement", "rates"]
    add(
        "--phases",
        type=start.some_of(PHASES),
        default=phases,
        help=f"from {', '.join(PHASES)} (default: {','.join(phases)})",
    )
    add("--pair", choices=tuple(SMALL), default="qwen3-moe", help="small shape to compare texts of")
    add("--layers", type=int, help="layers of the large shape; default: all 48")
    add("--rounds", type=int, default=5000, help="rounds of agreement")
    add("--window", type=float, default=1.2, metavar="SECONDS", help="time per rate measurement; each runs twice")
    add("--scenes", type=int, default=99, help="number of scenes of rates to run, from the first")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
