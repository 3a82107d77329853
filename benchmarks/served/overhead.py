"""What this package's part of a round takes on the scheduler's thread, by hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.served import loop
from benchmarks.served.hook_times import FILE, HookTimes
from benchmarks.served.report import Report
from benchmarks.server.servers import Running

if TYPE_CHECKING:
    from benchmarks.served.phases import Asked

Times = Mapping[str, tuple[float, float]]
REPLACES = "replace "
SHOWN = 16


def measure(server: Running, asked: Asked, make_of: Callable[[int, int], loop.Make], report: Report) -> None:
    """Serve a block at each batch size, twice, and keep the times of the second."""
    times = HookTimes(server.policy.variables[FILE])
    found = report.content["host_us_a_round"] = {}
    for size in asked.batches:
        requests, make = asked.requests_of(size), make_of(0, size)
        loop.run(server.client.url, requests, size, make)
        before, counted = times.read(), server.process.read()
        loop.run(server.client.url, requests, size, make)
        spent = server.process.read() - counted
        found[str(size)] = by_hook(before, times.read(), spent.rounds)
        found[str(size)] |= {"rounds": int(spent.rounds), "depths": spent.depths()}
        print(f"  batch {size}: {found[str(size)]['ours']:.1f} us a round of our own functions", flush=True)
        report.write()


def by_hook(before: Times, after: Times, rounds: float) -> dict[str, Any]:
    """Return microseconds a round: of ours beside SGLang's functions, of ours in their place, and the largest parts."""
    spent = {name: 1e6 * (seconds - before[name][1]) / rounds for name, (_, seconds) in after.items()}
    calls = {name: (count - before[name][0]) / rounds for name, (count, _) in after.items()}
    largest = sorted((name for name in spent if calls[name]), key=lambda name: -spent[name])[:SHOWN]
    return {
        "ours": sum(value for name, value in spent.items() if not name.startswith(REPLACES)),
        "in_place_of_sglang_s": sum(value for name, value in spent.items() if name.startswith(REPLACES)),
        "by_hook": {name: {"us": spent[name], "calls": calls[name]} for name in largest},
    }
