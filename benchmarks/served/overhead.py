"""What this package's part of a round takes on the scheduler's thread, by hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.served import loop
from benchmarks.served.hook_times import FILE, HookTimes, Spent
from benchmarks.served.report import Report
from benchmarks.server.servers import Running

if TYPE_CHECKING:
    from benchmarks.served.phases import Asked

IN_PLACE = ": fast_path."
"""In the name of a hook whose room does work of SGLang in SGLang's place; other rooms' hooks come on top of it."""
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
        ours, instead = found[str(size)]["ours"], found[str(size)]["in_place_of_sglang_s"]
        told = f"{ours:.1f} us a round on top of SGLang's functions, {instead:.1f} us in place of them"
        print(f"  batch {size}: {told}", flush=True)
        report.write()


def by_hook(before: Mapping[str, Spent], after: Mapping[str, Spent], rounds: float) -> dict[str, Any]:
    """Return microseconds a round: of ours on top of SGLang's functions, of ours in their place, the largest parts."""
    new = {
        name: Spent(*((now - then) / rounds for now, then in zip(spent, before[name], strict=True)))
        for name, spent in after.items()
    }
    instead = 1e6 * sum(spent.instead for name, spent in new.items() if IN_PLACE in name)
    largest = sorted((name for name in new if new[name].calls), key=lambda name: -new[name].seconds)[:SHOWN]
    return {
        "ours": 1e6 * sum(spent.seconds for spent in new.values()) - instead,
        "in_place_of_sglang_s": instead,
        "by_hook": {name: {"us": 1e6 * new[name].seconds, "calls": new[name].calls} for name in largest},
    }
