"""Cost profiles of several models, one server after the other, by ``sglang-adaptive calibrate``.

    python -m benchmarks.server.calibrations --models FOLDER --output FOLDER PAIR[:SERVER_ARGUMENTS] ...

A pair is a name of benchmarks/server/shapes.py, whose config files are written into --models. Its server has the
throughput policy, real acceptance and the arguments after the colon: 'llama8b:--quantization fp8'. A pair that fails is
said so, and the next one runs. Writes PAIR.json, PAIR.png and PAIR.log.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from pathlib import Path

from benchmarks.server import hosts, shapes
from benchmarks.server.policies import POLICIES
from benchmarks.server.servers import Server
from sglang_adaptive.calibrate import command as calibrate


def main() -> int:
    """Measure every pair; 1 when one failed."""
    options = _parser().parse_args()
    shapes.write(options.models)
    failed = 0
    for asked in options.pairs:
        pair, _, arguments = asked.partition(":")
        try:
            _measure(options, pair, tuple(arguments.split()))
        except Exception:
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0


def _measure(options: argparse.Namespace, pair: str, arguments: tuple[str, ...]) -> None:
    name = "-".join([pair, *re.findall(r"[a-z0-9]+", " ".join(arguments))])
    folder = options.output / name
    folder.mkdir(parents=True)
    host: hosts.Host = hosts.cpu(options.largest, arguments, False)
    if options.host == "gpu":
        host = hosts.gpu(options.models, options.largest, options.kv_tokens, False, arguments, False, pair=pair)
    server = Server(POLICIES["throughput"], host, folder, folder / "profiles", simulate=False)
    server.launch()
    try:
        server.wait(time.monotonic() + options.start_timeout)
        print(f"{name}: ready after {server.start_seconds:.1f} s", flush=True)
        begin = time.monotonic()
        written = ["--output", str(folder / "profile.json"), "--png", str(folder / "profile.png")]
        if calibrate.main(["--url", server.client.url, "--rounds", str(options.rounds), *written]) != 0:
            raise RuntimeError(f"{name} was not measured:\n{server.log_tail(8)}")
        print(f"{name}: measured in {time.monotonic() - begin:.1f} s", flush=True)
    finally:
        server.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.calibrations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pairs", nargs="+", metavar="PAIR[:SERVER_ARGUMENTS]")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("/tmp/m"))
    parser.add_argument("--host", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--largest", type=int, default=64, help="largest batch (default: 64)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kv-tokens", type=int, default=100_000)
    parser.add_argument("--start-timeout", type=float, default=280.0, metavar="SECONDS")
    return parser


if __name__ == "__main__":
    sys.exit(main())
