"""What the history costs a scheduler: CPU time of adding a round, of pricing a second, and of a look at each span.

    python -m benchmarks.history_cost

A full hour: every second has rounds of batch sizes 8 and 64 at four depths each, so eight cells are priced; the policy
is the throughput policy after 2000 rounds. Looks include the encoding for the HTTP process. CPU time of this thread
alone, so that other load on the machine counts little. Bytes are those that Python allocated for the hour.
"""

from __future__ import annotations

import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import msgspec

from benchmarks.page_look import played
from sglang_adaptive import provenance
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.history import HOUR, SPANS, History

BATCHES, DEPTHS = (8, 64), (0, 1, 3, 5)
LOOKS = 200


def main() -> int:
    """Print the median CPU times, as JSON."""
    held = _held()
    added, closed, history = _hour()
    encode = msgspec.msgpack.Encoder().encode
    looks = {f"{span}": _timed(lambda span=span: encode(history.span(span))) for span in SPANS}  # type: ignore[misc]
    result = {
        "add_microseconds": {f"batch {batch}": statistics.median(times) for batch, times in added.items()},
        "price_a_second_microseconds": statistics.median(closed),
        "look_microseconds": looks,
        "look_bytes": {f"{span}": len(encode(history.span(span))) for span in SPANS},
        "kilobytes_of_an_hour": held / 1000,
        "cpu": provenance.cpu_model(),
        "commit": provenance.git_commit(),
    }
    print(json.dumps(result, indent=1))
    return 0


def _held() -> int:
    """Return the bytes that an hour holds: what its release gives back."""
    tracemalloc.start()
    found = [_hour()[2]]
    before = tracemalloc.get_traced_memory()[0]
    found.clear()
    given_back = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return given_back


def _hour() -> tuple[dict[int, list[float]], list[float], History]:
    """Return microseconds of every addition by batch size and of every pricing, and the history."""
    controller, now, draw = played(), [0.0], random.Random(0)
    history = History(controller.tiers, lambda: now[0])
    added: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    closed = []
    for _ in range(HOUR + 100):
        for batch in BATCHES:
            for steps in DEPTHS:
                counts = [draw.randint(0, steps) for _ in range(batch)]
                observation = RoundObservation(steps, counts, batch, 0.01)
                added[batch].append(_once(lambda seen=observation: history.add(seen)))  # type: ignore[misc]
        now[0] += 1.0
        closed.append(_once(lambda: history.close(controller.params)))
    return added, closed, history


def _timed(act: Callable[[], object]) -> float:
    return statistics.median(_once(act) for _ in range(LOOKS))


def _once(act: Callable[[], object]) -> float:
    begin = time.thread_time_ns()
    act()
    return (time.thread_time_ns() - begin) / 1000.0


if __name__ == "__main__":
    raise SystemExit(main())
