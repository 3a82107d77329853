"""A run: servers of one policy, or of several that share the device, started, driven through workloads, and stopped."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.server.hosts import Host
from benchmarks.server.passes import Contender
from benchmarks.server.policies import Policy
from benchmarks.server.results import Result
from benchmarks.server.servers import Running, Server
from benchmarks.server.starting import NotStarted
from benchmarks.server.workloads import WORKLOADS, Clock, Plan, Row, warm_up

STOP_SECONDS = 15.0
"""Kept back of a run's time, for stopping servers and writing the file."""


@dataclass(frozen=True)
class Matrix:
    """What is run."""

    groups: tuple[tuple[Policy, ...], ...]
    """Policies whose servers run at the same time, one tuple after the other."""

    workloads: tuple[str, ...]
    depths: tuple[int, ...]
    """Depths held in turn on the first of a group's servers that can, in place of static servers."""

    plan: Plan
    host: Host
    output: Path
    profiles: Path
    budget: float
    """Seconds for everything."""

    start_timeout: float
    simulate: bool = True


def run(matrix: Matrix, argv: Sequence[str]) -> int:
    """Run every group, also after one that failed; returns 0, or 1 when something failed."""
    end, failures = time.monotonic() + matrix.budget, 0
    for index, group in enumerate(matrix.groups):
        left = end - time.monotonic()
        if left < STOP_SECONDS:
            print(f"no time left for {_name(group)}", flush=True)
            failures += 1
            continue
        failures += not _run_group(group, matrix, time.monotonic() + left / (len(matrix.groups) - index), argv)
    return 1 if failures else 0


def _run_group(group: Sequence[Policy], matrix: Matrix, end: float, argv: Sequence[str]) -> bool:
    name = _name(group)
    print(f"{name}: starting, {end - time.monotonic():.0f} s", flush=True)
    servers: list[Server] = []
    try:
        _start(group, matrix, end, servers)
        return drive(servers, matrix, end - STOP_SECONDS, argv)
    except Exception:
        print(f"{name} failed:", file=sys.stderr)
        traceback.print_exc(file=sys.stderr)
        return False
    finally:
        for server in servers:
            server.stop()


def start(matrix: Matrix) -> int:
    """Start every policy's server and leave them running, to be attached to. Returns 0, or 1 when one did not start."""
    servers: list[Server] = []
    end = time.monotonic() + matrix.budget
    try:
        _start([policy for group in matrix.groups for policy in group], matrix, end, servers)
    except NotStarted as problem:
        print(problem, file=sys.stderr)
        for server in servers:
            server.stop()
        return 1
    for server in servers:
        server.leave()
    return 0


def _start(group: Sequence[Policy], matrix: Matrix, end: float, servers: list[Server]) -> None:
    """Start the servers of *group* at the same time, adding each to *servers*, and wait for all."""
    for policy in group:
        servers.append(Server(policy, matrix.host, matrix.output, matrix.profiles, matrix.simulate))
        servers[-1].alone = len(group) == 1
        servers[-1].launch()
    for server in servers:
        server.wait(min(time.monotonic() + matrix.start_timeout, end))
        print(f"  {server.name} ready after {server.start_seconds:.1f} s", flush=True)


def drive(servers: Sequence[Running], matrix: Matrix, end: float, argv: Sequence[str]) -> bool:
    """Drive running servers through the workloads into one file; returns whether all of it went well."""
    name = _name([server.policy for server in servers])
    result = Result(_unused(matrix.output, name), name, matrix.plan, matrix.simulate, argv)
    try:
        for server in servers:
            result.describe(server)  # also here: a server that dies can no longer be asked
        complete = _drive(servers, matrix, Clock(end), result)
        for server in servers:
            result.describe(server)
    except Exception as error:
        result.note(f"{name} ended early: {type(error).__name__}: {error}")
        complete = False
    finally:
        result.write()
        print(f"{name}: wrote {result.path.name}", flush=True)
    return complete


def _drive(servers: Sequence[Running], matrix: Matrix, clock: Clock, result: Result) -> bool:
    """Run the workloads; one that fails is noted and the next is tried, unless a server is gone."""
    everyone = contenders(servers, matrix.depths)
    warm, complete = False, True
    for workload in sorted(matrix.workloads, key=list(WORKLOADS).index):
        try:
            if workload != "first-use" and not warm:
                begin = time.monotonic()
                warm_up(everyone, matrix.plan)
                print(f"  warmed up in {time.monotonic() - begin:.1f} s", flush=True)
                warm = True
            for row in WORKLOADS[workload](_of(workload, everyone, matrix.plan), matrix.plan, clock, result.note):
                result.add(row)
                print(line(row), flush=True)
        except Exception as error:
            complete = False
            result.note(f"{workload} ended early: {type(error).__name__}: {error}")
            gone = [server for server in servers if not server.is_running()]
            if gone:
                raise RuntimeError(f"{', '.join(server.name for server in gone)} gone; {gone[0].log_tail()}") from error
            traceback.print_exc(file=sys.stderr)
        result.write()
    return complete


def contenders(servers: Sequence[Running], depths: Sequence[int]) -> list[Contender]:
    """Return every server as a contender, and before them the depths held on the first server that can hold them."""
    able = next((server for server in servers if server.policy.ours), None)
    held = [Contender(able, steps) for steps in depths] if able else []
    without = [Contender(server) for server in servers if not server.policy.speculate]
    return [*without, *held, *(Contender(server) for server in servers if server.policy.speculate)]


def _of(workload: str, everyone: Sequence[Contender], plan: Plan) -> list[Contender]:
    """Return who takes part: where every depth would take too long, some stand for all."""
    if workload in ("cells", "heterogeneous"):
        return list(everyone)
    if workload in ("first-use", "switch-cost"):
        return [one for one in everyone if one.steps]
    some = [one for one in everyone if one.steps is None or one.steps in plan.compare_depths]
    if workload == "acceptance":
        return [one for one in some if one.knows_p]
    if workload == "open":  # its capacity is the first one's
        middle = sorted(plan.compare_depths)[len(plan.compare_depths) // 2]
        some = [one for one in some if one.steps in (None, middle)]
        return sorted(some, key=lambda one: one.steps is None)
    return some


def line(row: Row) -> str:
    """Return a row as one line."""
    latest = row["passes"][-1]
    case = " ".join(f"{key} {value}" for key, value in row["case"].items() if key not in ("decay",))
    accepted = f"accept {latest['accept_length']:.2f}"
    more = "".join(
        f", {key} {row[key]:.3f}" for key in ("first_over_second", "switches_per_hour", "switch_rounds") if key in row
    )
    return (
        f"  {row['workload']:<10} {case:<34.34} {row['contender']:<17}{row['tokens_per_second']:>10.1f} tokens/s "
        f"(spread {row['spread']:.1%}, {row['rounds']} rounds, {row['seconds']:.1f} s), {accepted}{more}"
    )


def _unused(folder: Path, name: str) -> Path:
    """Return a path that no earlier run has taken: a second drive of the same servers adds a number."""
    numbered = (folder / f"{name}{f'-{number}' if number else ''}.json" for number in range(1000))
    return next(path for path in numbered if not path.exists())


def _name(group: Sequence[Policy]) -> str:
    return re.sub(r"[^A-Za-z0-9+-]", "_", "+".join(policy.name for policy in group))
