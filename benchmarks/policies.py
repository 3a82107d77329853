"""Compare policies on live servers. Acceptance is simulated where models have dummy weights.

matrix    start servers, run workloads on them, write one JSON file per run, stop the servers
start     start servers and leave them running
drive     run workloads on servers that were left running
stop      stop them

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness import start
from benchmarks.harness.acceptance import Counted, Declared, Process
from benchmarks.harness.load import Answer, Batch, ClosedLoop, Declare, arrival_times, at_times, request_body
from benchmarks.harness.results import REAL, SIMULATED, Report, command_parser
from benchmarks.harness.start import POLICIES, Contender, Policy, Server
from benchmarks.harness.turns import Race, percentiles

SCHEMA = 2
STOP_SECONDS = 15.0
"""Part of a run's time reserved for stopping servers and writing the file."""

PATIENCE_SECONDS, POLL_SECONDS = 90.0, 0.002
FIRST_USE_TOKENS = 300
STEADY_BATCHES, STEADY_P = (8, 32), 0.7
SETTLE_SECONDS = 60.0
"""Excluded from switches per hour: the policy has to learn a new batch size first."""

Figures = dict[str, Any]
Case = tuple[tuple[str, Any], ...]
"""A row's key besides workload and contender; a dictionary in the file."""


class PassFailed(RuntimeError):
    """A pass yielded nothing to measure; the message is one line."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, 1 if something failed, 2 for bad usage."""
    given = parser().parse_args(argv)
    end = start.begin(given)
    try:
        groups = [start.chosen(part.split("+")) for part in given.policies]
        code: int = {"matrix": _matrix, "start": _start, "drive": _drive, "stop": _stop}[given.verb](
            given, groups, end, argv
        )
    except ValueError as problem:
        print(f"benchmarks.policies: error: {problem}", file=sys.stderr)
        return 2
    return code


# -- servers --------------------------------------------------------------------------------------------------------


def _maker(given: argparse.Namespace) -> Callable[[Policy], Server]:
    most = max(*given.batches, *(given.concurrencies if "load" in given.workloads else ()), 1)
    more = dict(extra=given.server_arguments, speculation=given.speculation, strict_loads=given.strict_loads)
    if given.host == "cpu":
        host = start.cpu(most, **more)
    else:
        sizes = dict(kv_tokens=given.kv_tokens, prefill_graphs=given.prefill_graphs)
        host = start.gpu(given.models, most, given.pair, **sizes, **more)
    simulate, profiles = not given.real_acceptance, given.profiles and given.profiles.resolve()
    return lambda policy: start.policy_server(policy, host, given.work, profiles=profiles, simulate=simulate)


def _matrix(given: argparse.Namespace, groups: Sequence[list[Policy]], end: float, argv: Sequence[str]) -> int:
    """Run every group, even after one fails; each has its share of the remaining time."""
    failures, make = 0, _maker(given)
    for index, group in enumerate(groups):
        left = end - time.monotonic()
        name = "+".join(policy.name for policy in group)
        print(f"{name}: {f'starting, {left:.0f} s' if left > STOP_SECONDS else 'no time left'}", flush=True)
        if left < STOP_SECONDS:
            failures += 1
            continue
        own_end = time.monotonic() + left / (len(groups) - index)
        servers = start.start_all(group, make, min(own_end, time.monotonic() + given.start_timeout))
        whole = len(servers) == len(group)
        failures += not (whole and drive(servers, given, own_end - STOP_SECONDS, argv))
        start.stop_started()
    return int(failures > 0)


def _start(given: argparse.Namespace, groups: Sequence[list[Policy]], end: float, argv: Sequence[str]) -> int:
    wanted = [policy for group in groups for policy in group]
    end = min(end, time.monotonic() + given.start_timeout)
    return int(len(start.start_all(wanted, _maker(given), end, leave=True)) < len(wanted))


def _drive(given: argparse.Namespace, groups: Sequence[list[Policy]], end: float, argv: Sequence[str]) -> int:
    servers = [start.attach(policy.name, given.work) for group in groups for policy in group]
    return int(not drive(servers, given, end, argv))


def _stop(given: argparse.Namespace, *_: Any) -> int:
    start.stop_left(given.work)
    return 0


# -- a run ----------------------------------------------------------------------------------------------------------


class Run:
    """Contenders of one run, its numbers as given, its file and its end."""

    def __init__(self, servers: Sequence[Server], given: argparse.Namespace, report: Report, end: float) -> None:
        self.given, self.report, self.end = given, report, end
        self.everyone = contenders(servers, given.depths)
        self.rows: list[Figures] = report.content["rows"]

    def declare(self, p: float) -> Declared:
        """Return a process with the run's decay."""
        return Declared(p, self.given.decay)

    def some(self) -> list[Contender]:
        """Return the contenders for workloads where every depth would take too long."""
        return [one for one in self.everyone if one.steps is None or one.steps in self.given.compare_depths]

    def has_time(self, seconds: float, what: str) -> bool:
        """Return whether a step of *seconds* would end in time, and note if not."""
        if time.monotonic() + seconds < self.end:
            return True
        self.report.note(f"{what}: out of time")
        return False

    def race(
        self, workload: str, cases: Sequence[Case], taking_part: Callable[[Case], Sequence[Contender]],
        serve: Callable[[Contender, Case, int], Figures], seconds: float = 0.0,
    ) -> None:  # fmt: skip
        """Let contenders serve each case in turn, ``--repeats`` times; the file has one row per contender and case."""
        earlier = list(self.rows)

        def rated(one: Contender, case: Case, number: int) -> Figures:
            found = serve(one, case, number)
            return {"rate": found["tokens_per_second"], **found}

        def after() -> None:
            self.rows[:] = [*earlier, *rows_of(workload, race.turns)]

        race = Race(
            lambda case, number: taking_part(case), cases, rated, self.report, end=self.end, least=self.given.repeats,
            most=self.given.repeats, seconds=lambda case: seconds, after=after,
            told=lambda case: " ".join([workload, *(f"{key} {value}" for key, value in case)]),
        )  # fmt: skip
        race.run()


def drive(servers: Sequence[Server], given: argparse.Namespace, end: float, argv: Sequence[str]) -> bool:
    """Drive running servers through the workloads into one file; returns whether everything succeeded."""
    name = re.sub(r"[^A-Za-z0-9+-]", "_", "+".join(server.name for server in servers))
    plan = {key: getattr(given, key) for key in PLAN}
    acceptance = REAL if given.real_acceptance else SIMULATED
    report = Report(
        _unused(given.results, name), "policies", argv, schema=SCHEMA, name=name, acceptance=acceptance, plan=plan,
        servers={server.name: server.described() for server in servers}, rows=[],
    )  # fmt: skip
    run, warm, complete = Run(servers, given, report, end), False, True
    for workload in given.workloads:
        try:
            if workload != "first-use" and not warm:
                _warm_up(run)
                warm = True
            WORKLOADS[workload](run)
        except Exception as error:
            complete = False
            report.note(f"{workload} ended early: {type(error).__name__}: {error}")
            traceback.print_exc(file=sys.stderr)
        gone = [server for server in servers if not server.is_running()]
        if gone:
            complete = False
            report.note(f"{', '.join(server.name for server in gone)} gone: {gone[0].last_error()}")
            break
    else:  # a server that is gone can no longer be asked
        report.content["servers"] = {server.name: server.described() for server in servers}
    report.write()
    report.say(f"{name}: wrote {report.path.name}")
    return complete


def contenders(servers: Sequence[Server], depths: Sequence[int]) -> list[Contender]:
    """Return the depths held on the first server that can hold them, then every server as a contender."""
    able = next((server for server in servers if server.policy.ours), None)
    held = [Contender(able, steps) for steps in depths] if able else []
    without = [Contender(server) for server in servers if not server.policy.speculate]
    return [*without, *held, *(Contender(server) for server in servers if server.policy.speculate)]


def knows_p(contender: Contender) -> bool:
    """Return whether acceptance affects it."""
    return contender.server.policy.speculate and contender.steps != 0


def rows_of(workload: str, turns: dict[Case, list[Figures]]) -> Iterator[Figures]:
    """Yield a row for each contender of each case."""
    for case, taken in turns.items():
        for name in dict.fromkeys(name for turn in taken for name in turn["passes"]):
            yield row(workload, name, dict(case), [turn["passes"][name] for turn in taken if name in turn["passes"]])


def row(workload: str, contender: str, case: Figures, passes: Sequence[Figures]) -> Figures:
    """Return a row of the result: the mean over its passes, and their spread."""
    rates = [one["tokens_per_second"] for one in passes]
    return {
        "workload": workload,
        "contender": contender,
        "case": case,
        "tokens_per_second": fmean(rates),
        "spread": (max(rates) - min(rates)) / fmean(rates),
        "rounds": sum(one["rounds"] for one in passes),
        "seconds": sum(one["seconds"] for one in passes),
        "passes": [{key: value for key, value in one.items() if key != "rate"} for one in passes],
    }


def _unused(folder: Path, name: str) -> Path:
    """Return a path unused by earlier runs: a second drive of the same servers adds a number."""
    numbered = (folder / f"{name}{f'-{number}' if number else ''}.json" for number in range(1000))
    return next(path for path in numbered if not path.exists())


# -- passes ---------------------------------------------------------------------------------------------------------


def batch_pass(contender: Contender, requests: int, tokens: int) -> Figures:
    """Decode *requests* requests of *tokens* tokens together; measure the rounds while all of them run.

    The pass ends with the first request that finishes, so it has no prefill or drain, and every contender covers the
    same context lengths. Raises PassFailed.
    """
    process = contender.server.process
    contender.take_over()
    process.full_from = requests
    before, full = process.read(), False
    with Batch(contender.server.client, requests, tokens) as batch:
        for now in _counts(contender, f"{requests} requests were not decoded", batch.is_running):
            started = now.rounds > before.rounds
            if started and full and now.batch_size < requests:
                break
            full = full or (started and now.batch_size == requests)
    if batch.error is not None:
        raise PassFailed(f"{contender.name}, batch {requests}: {batch.error}")
    counted = process.read() - before
    if counted.full_rounds < 3:
        raise PassFailed(f"{contender.name}: only {counted.full_rounds:.0f} rounds at a full batch of {requests}")
    times = process.round_seconds(before)
    return {
        "tokens_per_second": counted.full_expected / counted.full_seconds,
        "observed_tokens_per_second": counted.full_tokens / counted.full_seconds,
        "accept_length": counted.full_tokens / counted.full_requests,
        "expected_accept_length": counted.full_expected / counted.full_requests,
        "rounds": int(counted.full_rounds),
        "seconds": counted.full_seconds,
        # A pass may have faster stretches that no median shows.
        "round_ms": dict(zip(("p5", "median", "p95"), 1000 * np.percentile(times, (5, 50, 95)), strict=True)),
        "depths": counted.depths(),
        "switches": int(counted.switches),
    }


def whole(process: Process, before: Counted, seconds: float) -> Figures:
    """Return the figures of every round since *before*, including prefills, in *seconds* of wall time."""
    counted = process.read() - before
    if not counted.rounds:
        raise PassFailed("no round was decoded")
    return {
        "tokens_per_second": counted.expected / seconds,
        "observed_tokens_per_second": counted.tokens / seconds,
        "accept_length": counted.tokens / counted.requests,
        "rounds": int(counted.rounds),
        "seconds": seconds,
        "depths": counted.depths(),
        "switches": int(counted.switches),
    }


def _counts(contender: Contender, what: str, going_on: Callable[[], bool] = lambda: True) -> Iterator[Counted]:
    """Yield the server's counts, while *going_on*. Raises PassFailed on a timeout, or when the server is gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while going_on():
        yield contender.server.process.read()
        if time.monotonic() > deadline or not contender.server.is_running():
            raise PassFailed(f"{contender.name}: {what} within {PATIENCE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _until_decoding(contender: Contender, requests: int) -> None:
    """Wait until *requests* requests decode together."""
    before = contender.server.process.read().rounds
    for now in _counts(contender, f"{requests} requests did not decode together"):
        if now.rounds > before + 1 and now.batch_size >= requests:
            return


def _raise_first(contender: Contender, loop: ClosedLoop) -> None:
    if loop.errors:
        raise PassFailed(f"{contender.name}: {len(loop.errors)} requests failed: {loop.errors[0]}")


def own_p(decay: float) -> Declare:
    """Return a function from a request's number to its own process: p uniform in 0.2 to 0.95."""
    return lambda number: Declared(random.Random(100_003 + number).uniform(0.2, 0.95), decay)


def latencies(answers: Sequence[Answer]) -> Figures:
    """Return percentiles of a reader's waiting times."""
    return {
        "time_to_first_token": percentiles([answer.time_to_first_token for answer in answers]),
        "inter_token_latency": percentiles([gap for answer in answers for gap in answer.inter_token_latencies()]),
        "latency": percentiles([answer.latency for answer in answers]),
    }


# -- workloads ------------------------------------------------------------------------------------------------------


def _warm_up(run: Run) -> None:
    """Run every contender briefly at every batch size: first uses load kernels, which is measured elsewhere."""
    begin = time.monotonic()
    for batch in run.given.batches:
        for contender in run.everyone:
            contender.server.process.declared = Declared(0.6)
            batch_pass(contender, batch, 48)
    run.report.say(f"warmed up in {time.monotonic() - begin:.1f} s")


def first_use(run: Run) -> None:
    """First and second use of each held depth at each batch size since the server started: whole requests with prefill.

    Nothing may have run on the server before, not even a warm-up. Nothing is accepted, so both uses run the same
    rounds.
    """

    def use(contender: Contender, batch: int) -> Figures:
        process = contender.server.process
        contender.take_over()
        before, begin = process.read(), time.perf_counter()
        with Batch(contender.server.client, batch, FIRST_USE_TOKENS) as sent:
            sent.join()
            seconds = time.perf_counter() - begin
        if sent.error is not None:
            raise PassFailed(f"{contender.name}, batch {batch}: {sent.error}")
        return whole(process, before, seconds)

    longest = 0.0
    for batch in run.given.batches:
        for contender in (one for one in run.everyone if one.steps):
            if not run.has_time(1.1 * longest, f"first use, batch {batch}"):
                return
            contender.server.process.declared = run.declare(0.0)
            begin = time.monotonic()
            both = [use(contender, batch) for _ in range(2)]
            longest = max(longest, time.monotonic() - begin)
            case = {"batch_size": batch, "p": 0.0, "tokens": FIRST_USE_TOKENS}
            ratio = both[0]["tokens_per_second"] / both[1]["tokens_per_second"]
            run.rows.append({**row("first use", contender.name, case, both), "first_over_second": ratio})
            run.report.say(f"first use, batch {batch}, {contender.name}: {ratio:.3f} of the second")
            run.report.write()


def cells(run: Run) -> None:
    """Stationary: every batch size by every p, and p = 0. Contenders unaffected by p run once per batch size."""

    def serve(contender: Contender, case: Case, number: int) -> Figures:
        found = dict(case)
        contender.server.process.declared = run.declare(found["p"] or 0.0)
        return {**batch_pass(contender, found["batch_size"], run.given.tokens), "repeat": number}

    def taking_part(case: Case) -> list[Contender]:
        return [one for one in run.everyone if knows_p(one) == (dict(case)["p"] is not None)]

    run.race(
        "cells",
        [
            (("batch_size", batch), ("p", p), ("decay", run.given.decay))
            for batch in run.given.batches
            for p in (None, *run.given.p, 0.0)
        ],
        taking_part,
        serve,
    )


def acceptance(run: Run) -> None:
    """p 0.3 and 0.9 in turn while a closed loop decodes: ``--phases`` phases of ``--phase-seconds``."""
    script = [(run.declare(0.9 if phase % 2 else 0.3), None) for phase in range(run.given.phases)]
    more = (("p", "0.3, 0.9"), ("phases", run.given.phases), ("phase_seconds", run.given.phase_seconds))
    taking_part = [one for one in run.some() if knows_p(one)]
    cases = [(("batch_size", batch), *more) for batch in run.given.batches]
    _switching(run, "acceptance", cases, taking_part, script, lambda case: int(dict(case)["batch_size"]))


def load(run: Run) -> None:
    """Concurrency 1, 64, 8, 32, ... in a closed loop at one p."""
    given = run.given
    script = [(run.declare(given.load_p), concurrency) for concurrency in given.concurrencies]
    case = (
        ("concurrency", tuple(given.concurrencies)), ("p", given.load_p), ("phase_seconds", given.phase_seconds)
    )  # fmt: skip
    _switching(run, "load", [case], run.some(), script, lambda case: given.concurrencies[0])


def _switching(
    run: Run, workload: str, cases: Sequence[Case], taking_part: Sequence[Contender],
    script: Sequence[tuple[Declared, int | None]], concurrency: Callable[[Case], int],
) -> None:  # fmt: skip
    """Play the phases: each has a process, and a concurrency to change to or None for no change."""
    seconds = run.given.phase_seconds

    def serve(contender: Contender, case: Case, number: int) -> Figures:
        process = contender.server.process
        contender.take_over()
        process.declared = script[0][0]
        with ClosedLoop(contender.server.client, concurrency(case), run.given.request_tokens) as loop:
            _until_decoding(contender, concurrency(case))
            begin, first = time.perf_counter(), process.read()
            rates, before, at = [], first, begin
            for index, (declared, wanted) in enumerate(script):
                process.declared = declared
                if wanted is not None:
                    loop.resize(wanted)
                time.sleep(max(0.0, begin + (index + 1) * seconds - time.perf_counter()))
                now, after = time.perf_counter(), process.read()
                rates.append((after - before).expected / (now - at))
                before, at = after, now
            figures = whole(process, first, at - begin)
        _raise_first(contender, loop)
        return {**figures, "phases": rates}

    run.race(workload, cases, lambda case: taking_part, serve, len(script) * seconds + 3)


def steady(run: Run) -> None:
    """Switches per hour in a long closed loop at one p, and inter-token latency over the most used depth's.

    The first SETTLE_SECONDS, or half of a run shorter than twice that, do not count towards the switches per hour;
    ``switches`` of the pass has all.
    """
    seconds = run.given.steady_seconds
    settle = min(SETTLE_SECONDS, seconds / 2)
    for contender in [one for one in run.everyone if one.steps is None]:
        for batch in [batch for batch in STEADY_BATCHES if batch in run.given.batches] or run.given.batches[:1]:
            if not run.has_time(seconds + 3, f"steady, batch {batch}"):
                return
            first = _stream(run, contender, batch, seconds, settle)
            case = {"batch_size": batch, "p": STEADY_P, "decay": run.given.decay}
            later = first["seconds"] - settle
            found = {"settled_seconds": later, "switches_per_hour": first["settled_switches"] / later * 3600}
            if contender.server.policy.ours:
                found |= _against_static(run, contender, batch)
            run.rows.append({**row("steady", contender.name, case, [first]), **found})
            run.report.say(f"steady, batch {batch}, {contender.name}: {found}")
            run.report.write()


def _against_static(run: Run, contender: Contender, batch: int) -> Figures:
    """Return the ratio of the ITL's p95 to that of a static depth, in two short turns of the policy.

    After each turn the depth that it used most there is held: if two are nearly as good, turns may differ.
    """
    seconds = min(10.0, run.given.steady_seconds)
    free, held, depths = [], [], []
    for _ in range(2):
        if not run.has_time(2 * (seconds + 3), f"latency, batch {batch}"):
            break
        turn = _stream(run, contender, batch, seconds)
        depths.append(int(max(turn["depths"], key=turn["depths"].get)))
        static = _stream(run, replace(contender, steps=depths[-1]), batch, seconds)
        free.append(turn["inter_token_latency"]["p95_ms"])
        held.append(static["inter_token_latency"]["p95_ms"])
    if not free:
        return {}
    p95 = {"itl_p95_ms_free": fmean(free), "itl_p95_ms_held": fmean(held)}
    return {**p95, "held_steps": depths, "itl_p95_against_static": sum(free) / sum(held)}


def _stream(run: Run, contender: Contender, batch: int, seconds: float, settle: float = 0.0) -> Figures:
    """Stream for *seconds*; ``settled_switches`` are those after the first *settle* seconds."""
    process = contender.server.process
    contender.take_over()
    process.declared, process.full_from = run.declare(STEADY_P), batch
    with ClosedLoop(contender.server.client, batch, run.given.request_tokens, stream=True) as loop:
        _until_decoding(contender, batch)
        time.sleep(min(1.0, seconds / 10))  # the policy needs time to see a change of p
        before, begin = process.read(), time.perf_counter()
        time.sleep(settle)
        settled = process.read()
        time.sleep(seconds - settle)
        figures = whole(process, before, time.perf_counter() - begin)
        later = process.read() - settled
        answers = list(loop.answers)
    _raise_first(contender, loop)
    return {**figures, "settled_switches": int(later.switches), **latencies(answers)}


def arrivals(run: Run) -> None:
    """Poisson arrivals at shares of what the first contender can serve; the same arrivals for all."""
    given = run.given
    middle = sorted(given.compare_depths)[len(given.compare_depths) // 2]
    taking_part = sorted(
        (one for one in run.some() if one.steps in (None, middle)), key=lambda one: one.steps is None
    )  # fmt: skip
    capacity = given.capacity or _capacity(run, taking_part[0])

    def serve(contender: Contender, case: Case, number: int) -> Figures:
        process = contender.server.process
        contender.take_over()
        before, begin = process.read(), time.perf_counter()
        times = arrival_times(dict(case)["requests_per_second"], given.open_seconds, number)
        declare = own_p(given.decay)
        bodies = [request_body(at, given.request_tokens, declare, stream=True) for at in range(len(times))]
        answers = at_times(contender.server.client, times, bodies)
        figures = whole(process, before, time.perf_counter() - begin)
        return {**figures, "requests": len(answers), **latencies(answers)}

    cases = [
        (("share", share), ("requests_per_second", share * capacity), ("capacity_of", taking_part[0].name))
        for share in given.shares
    ]
    run.race("open loop", cases, lambda case: taking_part, serve, 1.3 * given.open_seconds)


def _capacity(run: Run, contender: Contender) -> float:
    """Return requests per second in a closed loop at the largest batch, each request with its own p."""
    concurrency, tokens = max(run.given.batches), run.given.request_tokens
    contender.take_over()
    with ClosedLoop(contender.server.client, concurrency, tokens, declare=own_p(run.given.decay)) as loop:
        _until_decoding(contender, concurrency)
        before, begin = contender.server.process.read(), time.perf_counter()
        time.sleep(max(4.0, run.given.open_seconds / 3))
        counted = contender.server.process.read() - before
        tokens_per_second = counted.tokens / (time.perf_counter() - begin)
    _raise_first(contender, loop)
    return tokens_per_second / tokens


WORKLOADS: dict[str, Callable[[Run], None]] = {
    "first-use": first_use, "cells": cells, "acceptance": acceptance, "load": load, "steady": steady, "open": arrivals,
}  # fmt: skip


# -- the command line -----------------------------------------------------------------------------------------------

PLAN: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "batches": (start.ints, [1, 8, 32, 64], "batch sizes of cells, acceptance and steady"),
    "p": (start.floats, [0.3, 0.6, 0.8, 0.9], "acceptance probabilities of cells; 0 is always included"),
    "decay": (float, 1.0, "draft j is accepted with probability p * decay^(j-1) if draft j-1 was"),
    "tokens": (int, 192, "tokens per request in a pass of cells"),
    "repeats": (int, 3, "turns per case"),
    "phase_seconds": (float, 1.2, "seconds per phase of acceptance and load"),
    "phases": (int, 8, "phases of acceptance"),
    "concurrencies": (start.ints, [1, 64, 8, 32, 2, 64, 16, 4], "requests at a time in the phases of load"),
    "load_p": (float, 0.7, "acceptance probability of load"),
    "request_tokens": (int, 400, "tokens per request, except in cells"),
    "steady_seconds": (float, 60.0, "duration of steady"),
    "open_seconds": (float, 15.0, "duration of open"),
    "shares": (start.floats, [0.3, 0.6, 0.9], "arrival rates of open, as shares of the capacity"),
    "capacity": (float, None, "requests per second; default: what the first contender serves"),
    "compare_depths": (start.ints, [1, 3, 5], "depths to hold where not every depth is measured"),
}
"""The numbers of a run: how they are parsed, their defaults, their meanings."""


def parser() -> argparse.ArgumentParser:
    made = command_parser("policies", __doc__)
    verbs = made.add_subparsers(dest="verb", required=True)
    for verb in ("matrix", "start", "drive", "stop"):
        one = verbs.add_parser(verb)
        start.add_options(one, 540.0)
        add = one.add_argument
        add(
            "--policies",
            type=start.names,
            default=list(POLICIES),
            help="start one after another: a,b; together: a+b",
        )
        add("--workloads", type=start.some_of(WORKLOADS), default=["cells"], help=", ".join(WORKLOADS))
        add(
            "--depths",
            type=start.ints,
            default=[],
            help="to hold on the first adaptive server, as static servers",
        )
        add("--profiles", type=Path, help="folder of saved cost profiles; default: WORK/profiles")
        add("--start-timeout", type=float, default=280.0, metavar="SECONDS")
        add("--pair", default="llama8b", help="target and draft (harness/shapes.py, or folders of --models)")
        add("--kv-tokens", type=int, default=100_000, help="KV cache tokens per server (gpu)")
        add("--prefill-graphs", action="store_true", help="also capture CUDA graphs for prefills (gpu)")
        add("--strict-loads", action="store_true", help="stop an adaptive server if a kernel loads while it serves")
        add(
            "--speculation",
            type=str.split,
            default=[],
            help="speculation arguments; default: EAGLE-3 and its draft",
        )
        add(
            "--real-acceptance",
            action="store_true",
            help="the models' own; almost 0 with dummy weights",
        )
        for name, (kind, default, what) in PLAN.items():
            add(f"--{name.replace('_', '-')}", type=kind, default=default, help=what)
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
