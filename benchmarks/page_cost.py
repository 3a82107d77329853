"""What an open page costs: tokens/s with a viewer and without one, in turn, on one running server.

    python -m benchmarks.page_cost --url http://127.0.0.1:30000 --output RESULT.json

Each pair of stretches decodes the same prompts once alone and once while /adaptive.json is read once a second, as an
open page does; which of the two comes first alternates. The depth is held, so that both do the same work. The result
is the geometric mean of the pairs' ratios with its standard error. How long a look takes on the idle server, and how
long the whole /server_info, is timed beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_adaptive import provenance
from sglang_adaptive.client import Client

LOOKS = 20
PROMPT_TOKENS, VOCABULARY = 64, 200


def main() -> int:
    """Run the pairs, print each, and write the result."""
    arguments = _parser().parse_args()
    client = Client.from_url(arguments.url, api_key=arguments.api_key)
    looks = {path: _latency(client, path) for path in ("/adaptive.json", "/server_info")}
    client.force_steps(arguments.steps)
    try:
        _decode(client, arguments, 0)  # first uses load kernels; that is not what is compared here
        pairs = [_pair(client, arguments, index) for index in range(arguments.pairs)]
    finally:
        client.force_steps(None)
    logs = [math.log(pair["with_viewer"] / pair["alone"]) for pair in pairs]
    result = {
        "ratio": math.exp(statistics.fmean(logs)),
        "standard_error": statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None,
        "pairs": pairs,
        "median_milliseconds_of_a_request_on_the_idle_server": looks,
        "median_ratio": statistics.median(map(math.exp, logs)),
        "path": arguments.path,
        "steps": arguments.steps,
        "batch": arguments.batch,
        "tokens": arguments.tokens,
        "cpu": provenance.cpu_model(),
        "cores": provenance.cpu_cores(),
        "commit": provenance.git_commit(),
        "versions": provenance.versions("sglang", "torch"),
        "note": arguments.note,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"tokens/s with a viewer over without: {result['ratio']:.4f}, standard error {result['standard_error']}")
    return 0


def _pair(client: Client, arguments: argparse.Namespace, index: int) -> dict[str, float]:
    def alone() -> float:
        return _decode(client, arguments, index)

    def with_viewer() -> float:
        with _viewer(client, arguments.path):
            return _decode(client, arguments, index)

    stretches: dict[str, Callable[[], float]] = {"alone": alone, "with_viewer": with_viewer}
    order = list(stretches) if index % 2 == 0 else list(stretches)[::-1]
    pair = {name: stretches[name]() for name in order}
    print(f"pair {index}: {pair['alone']:.1f} tokens/s alone, {pair['with_viewer']:.1f} with a viewer", flush=True)
    return pair


def _decode(client: Client, arguments: argparse.Namespace, seed: int) -> float:
    """Send a batch of prompts of random tokens, the same for a seed, and return tokens/s."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(arguments.batch)]
    begin = time.perf_counter()
    answers = client.generate(prompts, arguments.tokens, ignore_eos=True)
    return sum(answer["meta_info"]["completion_tokens"] for answer in answers) / (time.perf_counter() - begin)


@contextmanager
def _viewer(client: Client, path: str) -> Iterator[None]:
    """Read *path* once a second, as an open page does, until the block ends."""
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            client.get(path)
            done.wait(1.0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _latency(client: Client, path: str) -> float:
    """Return the median of some requests on the idle server, in milliseconds; none shares another's answer."""
    found = []
    for _ in range(LOOKS):
        begin = time.perf_counter()
        client.get(path)
        found.append(1000.0 * (time.perf_counter() - begin))
        time.sleep(1.0)
    return statistics.median(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--api-key")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--path", default="/adaptive.json", help="what a viewer reads; /health for comparison")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200, help="a request; long enough for several looks")
    parser.add_argument("--steps", type=int, default=3, help="the depth that is held")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
