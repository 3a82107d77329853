"""``python -m benchmarks.server``: the stationary cells and the switching sequence on one running server.

    python -m benchmarks.server --url http://127.0.0.1:30000 --acceptance FILE --output RESULT.json \\
        --batch 1,8,32,64 --p 0.3,0.6,0.8,0.9 --tokens 300 --force 0,1,2,3,5,7

``--acceptance`` is the file of ``benchmarks.server.simulated``; without it acceptance is the models' own. ``--force``
holds each depth in turn (and -1 lets the policy decide), so that static depths are measured on the same server.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.server.simulated import Process
from benchmarks.server.workload import Served, serve
from sglang_adaptive import provenance
from sglang_adaptive.client import Client

RELEASED = -1


def main() -> int:
    """Run every cell, writing the file after each so that a broken run leaves what it measured."""
    arguments = _parser().parse_args()
    client = Client.from_url(arguments.url)
    process = Process(arguments.acceptance, create=not arguments.acceptance.exists()) if arguments.acceptance else None
    result: dict[str, Any] = {
        "label": arguments.label,
        "acceptance": "simulated: geometric, drawn per request" if process else "the models' own",
        "command": "python -m benchmarks.server " + " ".join(map(_without_folder, sys.argv[1:])),
        "commit": provenance.git_commit(),
        "versions": provenance.versions("sglang", "torch", "triton", "sglang-kernel"),
        "tokens": arguments.tokens,
        "cells": [],
        "switching": [],
    }
    for steps in arguments.force:
        if steps != RELEASED or arguments.force != [RELEASED]:
            _hold(client, steps)
        for batch in arguments.batch:
            if process is not None:
                process.p = 0.6
            serve(client, batch, arguments.warm_up)  # first uses load kernels; that is not what is compared here
            for p in arguments.p:
                if process is not None:
                    process.p = p
                served = serve(client, batch, arguments.tokens)
                result["cells"].append({"steps": steps, "batch_size": batch, "p": p, **_numbers(served)})
                print(_line(steps, batch, p, served), flush=True)
                arguments.output.write_text(json.dumps(result, indent=1))
        if process is not None and arguments.switching:
            _switch(client, process, steps, arguments, result)
    adaptive = client.server_info()["internal_states"][0].get("adaptive")
    result |= {"adaptive": adaptive, "hardware": adaptive and adaptive.get("profile_key", {}).get("gpu_name")}
    arguments.output.write_text(json.dumps(result, indent=1))
    return 0


def _switch(
    client: Client, process: Process, steps: int, arguments: argparse.Namespace, result: dict[str, Any]
) -> None:
    """Acceptance 0.3 and 0.9 in turn while one batch decodes on, 8 phases of --switching seconds."""
    import threading

    for batch in arguments.batch:
        done = threading.Event()

        def alternate(done: threading.Event = done) -> None:
            phase = 0
            while not done.is_set():
                process.p = 0.9 if phase % 2 else 0.3
                phase += 1
                done.wait(arguments.switching)

        thread = threading.Thread(target=alternate)
        thread.start()
        begin, tokens, index = time.perf_counter(), 0, 0
        while time.perf_counter() - begin < 8 * arguments.switching:
            tokens += serve(client, batch, arguments.tokens, seed=index).tokens
            index += 1
        seconds = time.perf_counter() - begin
        done.set()
        thread.join()
        entry = {"steps": steps, "batch_size": batch, "tokens_per_second": tokens / seconds}
        result["switching"].append(entry)
        print(f"switching p 0.3/0.9: steps {steps:>2}, batch {batch:>3}: {tokens / seconds:9.1f} tokens/s", flush=True)


def _hold(client: Client, steps: int) -> None:
    wanted = None if steps == RELEASED else steps
    client.post("/set_internal_state", {"server_args": {"adaptive_force_steps": wanted}})


def _numbers(served: Served) -> dict[str, Any]:
    return {
        "tokens_per_second": served.tokens_per_second,
        "accept_length": served.accept_length,
        "seconds": served.seconds,
    }


def _line(steps: int, batch: int, p: float, served: Served) -> str:
    accepted = f"{served.accept_length:5.2f}" if served.accept_length else "    -"
    return f"steps {steps:>2}, batch {batch:>3}, p {p:.2f}: {served.tokens_per_second:9.1f} tokens/s, accept {accepted}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--label", default="")
    parser.add_argument("--acceptance", type=Path)
    parser.add_argument("--batch", type=_ints, default=[1, 8, 32, 64])
    parser.add_argument("--p", type=_floats, default=[0.3, 0.6, 0.8, 0.9])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=60, help="tokens a request before a batch size is measured")
    parser.add_argument("--force", type=_ints, default=[RELEASED], help="depths to hold in turn; -1 for the policy")
    parser.add_argument("--switching", type=float, default=0.0, metavar="SECONDS", help="length of a phase; 0 for none")
    return parser


def _without_folder(argument: str) -> str:
    return Path(argument).name if argument.startswith("/") else argument


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
