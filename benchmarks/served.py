"""Measure real text on live servers. See benchmarks/README.md.

start SCENE    start all servers of smollm2 or replay together and leave them running
drive PHASE    run greedy, sampled, equal, sampling, pace or host-time (smollm2), replay or host-time (replay) on
               them and write one JSON file
stop SCENE     stop them
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness import hook_times, load, stacks, start, texts
from benchmarks.harness.acceptance import QUESTION, TRACE_FILE
from benchmarks.harness.load import Blocks, Body, Make, greedy, in_blocks
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import DEPTHS, POLICIES, Contender, Host, Policy, Server
from benchmarks.harness.turns import LEAST_TURNS, Race, behind
from benchmarks.traces import prompts
from sglang_adaptive.lab import traces

TRACES = Path(__file__).parent / "traces"
TRACE = TRACES / "smollm2-greedy.npz"
QUESTIONS = TRACES / "spec_bench" / "question.jsonl.gz"
SMOLLM2, REPLAY = "smollm2", "replay"
OURS, NONE = "throughput", "none"
SCENES = {
    SMOLLM2: (NONE, "static-1", "static-2", "static-3", "static-5", "static-7", "sglang-ema", OURS),
    REPLAY: (NONE, "sglang-ema", OURS),
}
"""The contenders of each scene. In the replay our server holds the static depths: a server takes 35 GB there."""

TIMED = "throughput-timed"
"""Our server again, with a clock around each of our hooks; it is in no comparison."""

BEFORE = "throughput-before"
"""Our server without SWITCHED_OFF, to measure the gain of the newest parts in one run."""

SWITCHED_OFF = "short-verify,short-draft,relay,isolation"

REAL = "SmolLM2-135M-Instruct and its EAGLE-3 draft on Spec-Bench's questions; acceptance is the models' own"
REPLAYED = "a model's shape with dummy weights; acceptance is replayed from a trace, position by position"
SCHEMA = "served-1"
VOCABULARY = 200
SETTLE_SECONDS = 0.05
FORCE_SECONDS = 0.01
"""Seconds between two forced changes: a few rounds of a small model."""

SAMPLES, SAMPLES_A_CALL, SAMPLED_PROMPTS = 20_000, 500, 32


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, or 1 if something failed."""
    given = parser().parse_args(argv)
    end = start.begin(given)
    given.scene = given.what if given.verb != "drive" else REPLAY if given.what == REPLAY else given.scene
    given.folder = given.work / given.scene
    if given.verb == "stop":
        start.stop_left(given.folder)
        return 0
    if given.verb == "start":
        return _start(given, end)
    phase = Phase(given, argv, end)
    try:
        PHASES[given.what](phase)
    except Exception as problem:
        phase.report.note(f"{given.what} ended early: {type(problem).__name__}: {problem}")
        return 1
    finally:
        phase.report.write()
        phase.report.say(f"wrote {phase.report.path.name}")
    return 0


# -- servers --------------------------------------------------------------------------------------------------------


def _start(given: argparse.Namespace, end: float) -> int:
    names = given.contenders or [*SCENES[given.scene], *([TIMED] if given.scene == SMOLLM2 else [])]
    replayed, host = given.scene == REPLAY, _host(given)
    policies = [_policy(name, given.folder) for name in names]
    if given.record:
        policies = [_recorded(policy, given.folder) for policy in policies]
    if replayed:
        traced = {TRACE_FILE: str(given.trace)}
        policies = [replace(policy, variables={**policy.variables, **traced}) for policy in policies]
    policies = [
        replace(one, variables={**one.variables, stacks.FILE: str(given.folder / f"{one.name}.stacks")})
        for one in policies
    ]
    given.folder.mkdir(parents=True, exist_ok=True)

    def make(policy: Policy) -> Server:
        # Stock schedulers and ours all count their rounds; acceptance is simulated only in the replay.
        return start.policy_server(policy, host, given.folder, simulate=replayed)

    found = start.start_all(policies, make, end, leave=True)
    if not replayed:
        _questions(given)  # now, because a tokenizer takes seconds of a drive
    print(f"{given.scene}: {len(found)} of {len(names)} servers", flush=True)
    return int(len(found) < len(names))


def _policy(name: str, folder: Path) -> Policy:
    """Return a contender's arguments. Raises KeyError for another name."""
    if name == BEFORE:
        return replace(POLICIES[OURS], name=name, variables={"SGLANG_ADAPTIVE_OFF": SWITCHED_OFF})
    if name == TIMED:
        return replace(POLICIES[OURS], name=name, variables={hook_times.FILE: str(folder / "hook-times")})
    return POLICIES[name]


def _recorded(policy: Policy, folder: Path) -> Policy:
    """Return *policy* with a trace of its rounds in FOLDER/NAME.rounds, if it is ours."""
    return replace(policy, config={**(policy.config or {}), **trace_of(folder, policy.name)}) if policy.ours else policy


def trace_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the part of a configuration that records rounds in FOLDER/NAME.rounds."""
    return {"trace": {"file": str(folder / f"{name}.rounds")}}


def _questions(given: argparse.Namespace) -> list[list[int]]:
    """Return Spec-Bench's questions as token ids; cached in a file, because a tokenizer loads slowly."""
    kept: Path = given.folder / "prompts.json"
    if not kept.exists():
        kept.write_text(json.dumps(tokenized(start.smollm2_folders(given.models)[0])))
    found: list[list[int]] = json.loads(kept.read_text())
    return found


def _host(given: argparse.Namespace) -> Host:
    # Idle schedulers sleep, because nine that poll would fill the CPU.
    extra, batch = ("--sleep-on-idle", *given.server_arguments), given.batch
    if given.scene == REPLAY:
        if given.host == "cpu":
            host = start.cpu(batch, extra=extra, prefix_cache=True)
        else:
            sizes = dict(prefix_cache=True, kv_tokens=given.kv_tokens)
            host = start.gpu(given.models, batch, given.pair, extra=extra, **sizes)
        return start.blocks(host) if given.blocks else host
    return start.smollm2(given.models, batch, given.host == "cpu", extra, kv_tokens=given.kv_tokens)


# -- phases ---------------------------------------------------------------------------------------------------------


class Phase:
    """One phase of a run: the servers that were left running, and its file."""

    def __init__(self, given: argparse.Namespace, argv: Sequence[str], end: float) -> None:
        self.given, self.end = given, end
        batches = {str(size): self.requests_of(size) for size in given.batches}
        plan = {"requests_of_a_pass_by_batch": batches, "tokens": given.tokens, "budget_seconds": given.budget}
        path = given.results / f"{given.name or given.what}.json"
        self.report = Report(path, "served", argv, schema=SCHEMA, phase=given.what, plan=plan, servers={})
        self.servers: list[Server] = []

    def attach(self, what: str, more: Sequence[str] = (), **plan: Any) -> None:
        """Find the servers, and record in the file what they are asked."""
        names = [*(self.given.contenders or SCENES[self.given.scene]), *more]
        self.servers = start.attached(names, self.given.folder, self.report.note)
        for server in self.servers:
            told = {"command": server.described()["command"], "start_seconds": server.start_seconds}
            self.report.content["servers"][server.name] = told
        if not self.servers:
            raise ValueError(f"none of {', '.join(names)} runs")
        self.report.add(what=what, plan={**self.report.content["plan"], **plan})

    def named(self, name: str) -> Server:
        """Return a server by its name. Raises ValueError."""
        found = next((server for server in self.servers if server.name == name), None)
        if found is None:
            raise ValueError(f"{name} does not run")
        return found

    def requests_of(self, batch: int) -> int:
        """Return the requests of a pass."""
        return dict(self.given.requests).get(batch, 4 * batch)

    def race(self, contenders: Sequence[Contender], make_of: Blocks, ours: str, end: float) -> Race:
        """Warm up the contenders one by one, unless they are warm, and return the race, not yet run."""

        def serve(contender: Contender, size: int, number: int) -> dict[str, Any]:
            return one_pass(contender, self.requests_of(size), size, make_of(number, size))

        begin = time.monotonic()
        for size in [] if self.given.warm else self.given.batches:
            for contender in contenders:
                with self.report.noting(f"warm-up of {contender.name}, batch {size}"):
                    contender.take_over()
                    load.run_list(contender.server.client.url, size, size, make_of(0, size), patience=60)
        self.report.say(f"warmed up in {time.monotonic() - begin:.1f} s")

        held = {one.name for one in contenders if one.steps is not None}

        def taking_part(size: int, number: int) -> list[Contender]:
            gone = behind(race.turns[size], held, self.given.behind)
            return [one for one in contenders if one.name not in gone]

        race = Race(
            taking_part, self.given.batches, serve, self.report, end=end, error=self.given.error,
            least=self.given.turns, ours=ours,
        )  # fmt: skip
        return race

    def questions(self) -> list[list[int]]:
        return _questions(self.given)

    def text(self, temperature: float) -> Blocks:
        """Return blocks of questions."""
        found, sampling = self.questions(), greedy(self.given.tokens, temperature=temperature)
        return in_blocks(
            len(found), self.requests_of, lambda item, place: {"input_ids": found[item], "sampling_params": sampling}
        )

    def recorded(self) -> Blocks:
        """Return blocks of the trace's questions in random order, each with its recorded length."""
        given, path = self.given, Path(self.servers[0].policy.variables[TRACE_FILE])
        self.report.content["plan"]["trace"] = path.name
        trace = traces.read(path)
        order = np.random.default_rng(0).permutation(len(trace.category)).tolist()

        def body(item: int, place: int) -> Body:
            question = order[item]
            tokens = min(int(trace.length[question]) + 1, given.tokens)
            sampling = greedy(tokens, custom_params={QUESTION: question})
            return {"input_ids": context_of(place, given.context), "sampling_params": sampling}

        return in_blocks(len(order), self.requests_of, body)


def tokenized(target: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    return [prompts.as_chat(tokenizer, prompt.text) for prompt in prompts.load(QUESTIONS)]


def one_pass(contender: Contender, requests: int, concurrency: int, make: Make) -> dict[str, Any]:
    """Serve *requests* requests, *concurrency* at a time, and return the figures of the decode rounds meanwhile.

    Times count of rounds that follow another decode round, both with fewer free places than are filled at once. The
    rate is *concurrency* x tokens per request and round / seconds per round; otherwise contenders whose requests end
    together would seem to run more requests. The tokens are those of all rounds, so that one text yields the same at
    the same steps, whichever of its rounds are timed. ``wall`` is every token over every second, including prefills and
    gaps. Raises RuntimeError if no time counts.
    """
    process = contender.server.process
    contender.take_over()
    process.full_from = concurrency - load.group_of(concurrency) + 1
    before = process.read()
    done = load.run_list(contender.server.client.url, requests, concurrency, make)
    time.sleep(SETTLE_SECONDS)  # a round of aborted requests may still run
    counted = process.read() - before
    if counted.full_rounds < 3:
        raise RuntimeError(f"only {counted.full_rounds:.0f} rounds at batch {concurrency}; {done.failed[:1]}")
    accept, seconds = counted.tokens / counted.requests, counted.full_seconds / counted.full_rounds
    found = {
        "rate": concurrency * accept / seconds,
        "wall": done.tokens / done.seconds,
        "seconds": done.seconds,
        "accept": accept,
        "round_ms": 1000 * seconds,
        "rounds": int(counted.full_rounds),
        "switches": int(counted.switches),
    }
    if contender.server.policy.ours and contender.steps is None:
        found["depths"] = counted.depths()
    return {**found, "failed": done.failed[:2]} if done.failed else found


def _text(phase: Phase, temperature: float) -> None:
    """Every contender in turn at every batch size."""
    phase.attach(REAL, temperature=temperature)
    race = phase.race(contenders(phase.servers, phase.given), phase.text(temperature), OURS, phase.end)
    phase.report.content["batches"] = race.turns
    race.run()


def contenders(servers: Sequence[Server], given: argparse.Namespace) -> list[Contender]:
    """Return the servers, and after those without speculation the depths held on ours, and on ours before."""
    by_name = {server.name: server for server in servers}
    first = [Contender(server) for server in servers if not server.policy.speculate]
    held = [Contender(by_name[OURS], steps) for steps in given.depths] if OURS in by_name else []
    if BEFORE in by_name:
        held += [Contender(by_name[BEFORE], steps, f"{BEFORE}-{steps}") for steps in given.depths]
    return [*first, *held, *(Contender(server) for server in servers if server.policy.speculate)]


def replay(phase: Phase) -> None:
    """A shape: every contender in turn at every batch size, on recorded acceptance."""
    given = phase.given
    phase.attach(REPLAYED, context=given.context, pair=given.pair)
    race = phase.race(contenders(phase.servers, given), phase.recorded(), OURS, phase.end)
    phase.report.content["batches"] = race.turns
    race.run()


def context_of(place: int, tokens: int) -> list[int]:
    """Return the prompt of a place in the batch: always the same, so that SGLang's radix cache has it."""
    found: list[int] = np.random.default_rng(place).integers(0, VOCABULARY, tokens).tolist()
    return found


def equal(phase: Phase) -> None:
    """Whether our greedy output equals that of no speculation, on every question, while the steps change.

    The server without speculation is asked again at another batch size, to show the effect of the batch size alone.
    """
    phase.attach(REAL, temperature=0)
    given, batch = phase.given, max(phase.given.batches)
    plain, ours = phase.named(NONE), phase.named(OURS)
    asked = phase.questions()[: dict(given.requests).get(0)]
    judge = texts.Judge(plain.client, asked, partial(start.in_time, phase.end))
    judge.expect("", _outputs(plain, asked, batch, given.tokens)[0])
    phase.report.add(reference=judge.about())

    def forced() -> Any:
        with texts.switching(ours.client, DEPTHS, FORCE_SECONDS):
            return _outputs(ours, asked, batch, given.tokens)

    ways: dict[str, Callable[[], Any]] = {
        "by policy": lambda: _outputs(ours, asked, batch, given.tokens),
        "forced every few rounds": forced,
        "no speculation, another batch size": lambda: _outputs(plain, asked, max(1, batch // 4), given.tokens),
    }
    for name, run in ways.items():
        with phase.report.noting(name):
            outputs, what = run()
            phase.report.add(**{name: {"questions": len(asked), **judge.judge("", outputs), **what}})
            phase.report.say(f"{name}: {phase.report.content[name]}"[:400])


def _outputs(
    server: Server, asked: Sequence[Sequence[int]], batch: int, tokens: int
) -> tuple[list[list[int]], dict[str, Any]]:
    """Return the greedy outputs for *asked*, *batch* at a time, and the counts of rounds."""
    before = server.process.read()
    done = load.run_list(
        server.client.url, len(asked), batch,
        lambda number, place: {"input_ids": asked[number], "sampling_params": greedy(tokens)},
        cut=False, patience=240,
    )  # fmt: skip
    counted = server.process.read() - before
    if len(done.answers) < len(asked):
        raise RuntimeError(f"{len(asked) - len(done.answers)} requests failed: {done.failed[:1]}")
    what = {"rounds": int(counted.rounds), "switches": int(counted.switches), "depths": counted.depths()}
    return [done.answers[number]["output_ids"] for number in range(len(asked))], what


def sampling(phase: Phase) -> None:
    """Chi-square of the token after a fixed prefix against the target's distribution, while depths switch.

    The first new token comes from prefill. The prefix is therefore a prompt and its likeliest first token; among all
    samples only those that begin with it count, by their second token, which a verify chose. The prompt is the one
    whose samples are most informative: many begin with the prefix, and many tokens may follow. The server without
    speculation draws the same samples: its test shows the deviation caused by bfloat16 and another kernel alone.
    """
    phase.attach(REAL, temperature=1)
    plain, ours = phase.named(NONE), phase.named(OURS)

    def continued(asked: list[int]) -> tuple[list[int], int, float, dict[int, float]]:
        first = texts.likely(plain.client, asked)
        begins = max(first, key=lambda token: first[token])
        return asked, begins, math.exp(first[begins]), texts.likely(plain.client, [*asked, begins])

    choices = map(continued, phase.questions()[:SAMPLED_PROMPTS])
    asked, begins, share, second = max(choices, key=lambda choice: choice[2] * texts.entropy(choice[3]))
    phase.report.add(prefix_probability=share, entropy_nats=texts.entropy(second))
    for server, depths in ((ours, DEPTHS), (plain, ())):
        phase.report.add(**{server.name: texts.chi_square(_drawn(server, asked, begins, depths, phase.end), second)})
        phase.report.say(f"{server.name}: {phase.report.content[server.name]}")


def _drawn(server: Server, asked: list[int], begins: int, depths: Sequence[int], end: float) -> Counter[int]:
    """Return how often each second token came after *begins*; each of *depths* has its share of the samples."""
    counts: Counter[int] = Counter()
    for call in range(10 * SAMPLES // SAMPLES_A_CALL):
        if depths:
            server.force(depths[call % len(depths)])
        answers = server.client.generate([asked] * SAMPLES_A_CALL, 6, ignore_eos=True, temperature=1.0)
        counts.update(ids[1] for ids in (answer["output_ids"] for answer in answers) if ids[0] == begins)
        if counts.total() >= SAMPLES or time.monotonic() > end:
            break
    if depths:
        server.force(None)
    return counts


def host_time(phase: Phase) -> None:
    """Host time of our part of a round, by hook; and our server against stock SGLang at the same steps."""
    replayed = phase.given.scene == REPLAY
    phase.attach(REPLAYED if replayed else REAL, more=(TIMED,), temperature=0)
    make_of = phase.recorded() if replayed else phase.text(0.0)
    _by_hook(phase, phase.named(TIMED), make_of)
    ours = phase.named(OURS)
    stock = [server for server in phase.servers if server.name.startswith("static-")]
    for left, server in zip(range(len(stock), 0, -1), stock, strict=True):
        if (now := time.monotonic()) < phase.end:
            steps = int(server.name.removeprefix("static-"))
            pair = [Contender(server, None, "stock"), Contender(ours, steps, "held")]
            race = phase.race(pair, make_of, "held", now + (phase.end - now) / left)
            phase.report.content[f"steps {steps}"] = {"batches": race.turns}
            race.run()
    ours.force(None)


def _by_hook(phase: Phase, server: Server, make_of: Blocks) -> None:
    """Serve a block at each batch size, twice, and keep the times of the second."""
    times = hook_times.HookTimes(server.policy.variables[hook_times.FILE])
    found = phase.report.content["host_us_a_round"] = {}
    for size in phase.given.batches:
        requests, make = phase.requests_of(size), make_of(0, size)
        load.run_list(server.client.url, requests, size, make)
        before, counted = times.read(), server.process.read()
        load.run_list(server.client.url, requests, size, make)
        spent = server.process.read() - counted
        one = found[str(size)] = hook_times.by_hook(before, times.read(), spent.rounds)
        one |= {"rounds": int(spent.rounds), "depths": spent.depths()}
        told = f"{one['ours']:.1f} us per round besides SGLang's, {one['in_place_of_sglang_s']:.1f} us in place"
        phase.report.say(f"batch {size}: {told} of them")
        phase.report.write()


def pace(phase: Phase) -> None:
    """Rounds limited by the host: every contender in turn, our depths held; then where the host's time is spent.

    A third of the time is for the stacks, which are stored beside the JSON.
    """
    given = phase.given
    phase.attach(REAL, temperature=0)
    everyone, make_of = paced(phase.servers, given.depths or [0, 3]), phase.text(0.0)
    zero = next((one.name for one in everyone if one.steps == 0), NONE)
    now = time.monotonic()
    race = phase.race(everyone, make_of, zero, now + 0.67 * (phase.end - now))
    phase.report.content["batches"] = race.turns
    race.run()
    parts = phase.report.content["host_ms_a_round"] = {}
    for size in given.batches:
        for one in everyone:
            if time.monotonic() > phase.end:
                phase.report.note(f"no time left for the stacks of {one.name}, batch {size}")
                continue
            with phase.report.noting(f"stacks of {one.name}, batch {size}"):
                parts[f"{one.name}, batch {size}"] = _stacks(phase, one, size, make_of(0, size), race.turns[size])
    for one in everyone:
        if one.steps is not None:
            one.server.force(None)


def paced(servers: Sequence[Server], depths: Sequence[int]) -> list[Contender]:
    """Return stock servers unchanged, and each of ours once for each of *depths*, held."""
    stock = [Contender(server) for server in servers if not server.policy.ours]
    ours = [server for server in servers if server.policy.ours]
    return [*stock, *(Contender(server, steps, f"{server.name}-{steps}") for steps in depths for server in ours)]


def _stacks(phase: Phase, one: Contender, size: int, make: Make, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    passes = [turn["passes"][one.name]["round_ms"] for turn in turns if one.name in turn["passes"]]
    with stacks.sampled(Path(one.server.policy.variables[stacks.FILE])) as found:
        slowed = one_pass(one, phase.requests_of(size), size, make)
    path = phase.given.results / f"{phase.report.path.stem}-{one.name}-{size}.stacks.gz"
    path.write_bytes(gzip.compress("\n".join(f"{stack} {1e6 * s:.0f}" for stack, s in sorted(found.items())).encode()))
    return {"round_ms_while_sampled": slowed["round_ms"], **stacks.tally(found, fmean(passes or [slowed["round_ms"]]))}


PHASES: dict[str, Callable[[Phase], None]] = {
    "greedy": partial(_text, temperature=0.0), "sampled": partial(_text, temperature=1.0),
    "equal": equal, "sampling": sampling, "pace": pace, "host-time": host_time, "replay": replay,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = command_parser("served", __doc__)
    verbs = made.add_subparsers(dest="verb", required=True)
    for verb in ("start", "drive", "stop"):
        one = verbs.add_parser(verb)
        choices: Iterable[str] = PHASES if verb == "drive" else SCENES
        one.add_argument("what", choices=choices, metavar="PHASE" if verb == "drive" else "SCENE")
        if verb == "drive":
            one.add_argument("--scene", choices=SCENES, default=SMOLLM2, help="scene whose servers host-time uses")
        start.add_options(one, 300.0)
        add = one.add_argument
        add("--contenders", type=start.names, default=[], help="servers to use; default: all of the scene")
        add("--batch", type=int, default=64, help="maximum requests at a time")
        add("--kv-tokens", type=int, default=150_000, help="KV cache tokens per server (gpu)")
        add("--pair", default="llama8b", help="shapes for replay (harness/shapes.py)")
        add("--blocks", action="store_true", help="use the DFLASH draft instead of EAGLE-3 (replay)")
        if verb == "start":
            add("--trace", type=_trace, default=TRACE, metavar="FILE", help=f"trace for replay; default: {TRACE.name}")
            add("--record", action="store_true", help="record our servers' rounds in WORK/SCENE/NAME.rounds")
        add("--name", help="name of the JSON file; default: the phase")
        add("--batches", type=start.ints, default=[1, 4, 16, 64])
        add(
            "--requests",
            type=start.pairs,
            default=[(1, 6), (4, 16), (16, 64), (64, 192)],
            help="requests per pass, BATCH:N,...",
        )
        add("--tokens", type=int, default=192, help="new tokens per request; the maximum in replay")
        add("--error", type=float, default=0.01, help="stop early at this relative standard error")
        add("--turns", type=int, default=LEAST_TURNS, help="turns of every batch size before --error counts")
        add("--behind", type=float, default=0.0, help="leave out held steps below this share of the best in two turns")
        add("--warm", action="store_true", help="the servers served these batches before: do not warm them up")
        add("--depths", type=start.ints, default=[], help="depths to hold in turn on our server")
        add("--context", type=int, default=1000, help="tokens per prompt (replay)")
    return made


def _trace(text: str) -> Path:
    """Return the path of a readable trace."""
    try:
        traces.read(Path(text))
    except (OSError, traces.TraceError) as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return Path(text).resolve()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
