"""Cost profiles of several models, one server after the other, by ``sglang-adaptive calibrate``.

    python -m benchmarks.server.calibrations --models FOLDER --output FOLDER PAIR[:SERVER_ARGUMENTS] ...

A pair is a name of benchmarks/server/shapes.py, whose config files are written into --models. Its server has the
throughput policy, real acceptance and the arguments after the colon: 'llama8b:--quantization fp8'. A pair that fails is
said so, and the next one runs. With --together all servers start at once, which saves time where they fit on the
device side by side; each is measured while the others are idle. Writes PAIR/profile.json, profile.png and a log.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from contextlib import ExitStack
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
    for group in [options.pairs] if options.together else [[pair] for pair in options.pairs]:
        with ExitStack() as stop:
            launched = [_launched(options, asked, stop) for asked in group]
            failed += sum(server is None or not _measured(server, options) for server in launched)
    return 1 if failed else 0


def _launched(options: argparse.Namespace, asked: str, stop: ExitStack) -> Server | None:
    """Launch the server of *asked*, which *stop* will stop; None when it could not be."""
    pair, _, written = asked.partition(":")
    arguments = tuple(written.split())
    folder = options.output / "-".join([pair, *re.findall(r"[a-z0-9]+", written)])
    try:
        folder.mkdir(parents=True)
        if options.host == "gpu":
            sizes = {"max_requests": options.largest, "kv_tokens": options.kv_tokens}
            host: hosts.Host = hosts.gpu(options.models, pair=pair, extra=arguments, **sizes)
        else:
            host = hosts.cpu(options.largest, extra=arguments)
        server = Server(POLICIES["throughput"], host, folder, folder / "profiles", simulate=False)
        stop.callback(server.stop)
        server.launch()
    except Exception:
        traceback.print_exc()
        return None
    return server


def _measured(server: Server, options: argparse.Namespace) -> bool:
    """Measure a launched server, and return whether that went well."""
    name = server.folder.name
    try:
        server.wait(time.monotonic() + options.start_timeout)
        print(f"{name}: ready after {server.start_seconds:.1f} s", flush=True)
        begin = time.monotonic()
        written = ["--output", str(server.folder / "profile.json"), "--png", str(server.folder / "profile.png")]
        if calibrate.main(["--url", server.client.url, "--rounds", str(options.rounds), *written]) != 0:
            raise RuntimeError(f"{name} was not measured:\n{server.log_tail(8)}")
        print(f"{name}: measured in {time.monotonic() - begin:.1f} s", flush=True)
    except Exception:
        traceback.print_exc()
        return False
    finally:
        server.stop()  # now, for the next one may need its memory
    return True


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
    parser.add_argument("--together", action="store_true", help="start all servers at once")
    parser.add_argument("--largest", type=int, default=64, help="largest batch (default: 64)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kv-tokens", type=int, default=100_000)
    parser.add_argument("--start-timeout", type=float, default=280.0, metavar="SECONDS")
    return parser


if __name__ == "__main__":
    sys.exit(main())
