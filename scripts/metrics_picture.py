"""Draws docs/images/metrics.png from the data of a real Prometheus that scrapes a server on the CPU engine.

    python -m scripts.metrics_picture

The workload changes from easy to hard text and back, first one request at a time and then several. The queries are the
dashboard's. Needs Prometheus (Debian: apt install prometheus) and about 3 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.dashboard import GRAPHS
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.demo.results import FAMILIES, SEVERAL
from tests.prometheus import Prometheus

FILE = Path(__file__).parents[1] / "docs" / "images" / "metrics.png"
SHOWN = (
    "Draft steps over time",
    "Rounds by draft steps",
    "Acceptance by position",
    "Expected and observed tokens per second",
)
WINDOW = "15s"
"""Window for rates; the scrape interval is 1 s."""

Curves = list[tuple[dict[str, str], list[tuple[float, float]]]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of one kind of text; times are Unix seconds."""

    name: str
    begin: float
    end: float


def server(folder: Path) -> CpuServer:
    """Return a server with the throughput policy and metrics that starts without a saved profile."""
    config = folder / "adaptive.json"
    config.write_text(json.dumps({"policy": "throughput"}))
    speculation = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(models.draft_path()))
    return CpuServer(
        [
            *("--model-path", str(models.target_path()), "--served-model-name", "tiny"),
            *(*speculation, "--speculative-eagle-topk", "1", "--speculative-adaptive-config", str(config)),
            *("--enable-metrics", "--decode-log-interval", "4"),
        ],
        log=folder / "server.log",
        extra_environment={"XDG_CACHE_HOME": str(folder / "cache")},
        start_timeout=1200.0,
    )


def serve(asked: CpuServer, seconds: float) -> list[Stretch]:
    """Send the changing workload, *seconds* of each kind; return when each began and ended."""
    done = []
    for at_once, family in itertools.product((1, SEVERAL), FAMILIES):
        begin = time.time()
        prompts = itertools.cycle(models.prompts(family))

        def ask(until: float = begin + seconds, prompts: Any = prompts) -> None:
            while time.time() < until:
                asked.generate(next(prompts), 96, ignore_eos=True)

        with ThreadPoolExecutor(at_once) as pool:
            for future in [pool.submit(ask) for _ in range(at_once)]:
                future.result()
        done.append(Stretch(f"{family}, {at_once} at a time", begin, time.time()))
    return done


def read(prometheus: Prometheus, stretches: list[Stretch]) -> dict[str, list[Curves]]:
    """Return the data of each panel in SHOWN, one entry per query."""
    panels = {panel.title: panel for panel in GRAPHS}
    found = {}
    for title in SHOWN:
        queries = [query for query, _ in panels[title].queries]
        for macro, value in (("$__rate_interval", WINDOW), ("$model", ".*"), ("$instance", ".*")):
            queries = [query.replace(macro, value) for query in queries]
        begin, end = stretches[0].begin, stretches[-1].end
        found[title] = [prometheus.query_range(query, begin, end, 1.0) for query in queries]
    return found


def draw(data: dict[str, list[Curves]], stretches: list[Stretch], file: Path) -> None:
    """Draw the panels below each other, with the kinds of text marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    start = stretches[0].begin
    figure, axes = pyplot.subplots(len(SHOWN), 1, sharex=True, figsize=(10, 10), layout="constrained")
    for axis, title in zip(axes, SHOWN, strict=True):
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(alpha=0.25)
        for stretch in stretches[1:]:
            axis.axvline(stretch.begin - start, color="0.5", linewidth=0.8, linestyle=":")
    live, shares, acceptance, rates = axes
    for _, points in data[SHOWN[0]][0]:
        live.step(*_xy(points, start), where="post")
    _stack(shares, data[SHOWN[1]][0], start)
    for labels, points in sorted(data[SHOWN[2]][0], key=lambda curve: int(curve[0]["position"])):
        position = int(labels["position"])
        acceptance.plot(*_xy(points, start), label=f"position {position}", color=_shade(position))
    for curves, name, style in zip(data[SHOWN[3]], ("observed", "expected"), ("-", "--"), strict=True):
        for labels, points in sorted(curves, key=lambda curve: curve[0]["batch_region"]):
            colour = f"C{('1', '2-3', '4-7').index(labels['batch_region'])}"
            rates.plot(*_xy(points, start), style, color=colour, label=f"{name}, batch {labels['batch_region']}")
    live.set_ylabel("steps")
    shares.set_ylabel("share of rounds")
    acceptance.set_ylabel("accepted")
    rates.set_ylabel("tokens/s")
    for axis in (acceptance, rates):
        axis.set_ylim(bottom=0)
    for axis in axes[1:]:
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for stretch in stretches:
        middle = (stretch.begin + stretch.end) / 2 - start
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "top"}
        live.annotate(stretch.name, (middle, 0.98), fontsize=8, **place)
    axes[-1].set_xlabel("seconds")
    live.set_ylim(0, live.get_ylim()[1] * 1.2)
    axes[-1].set_xlim(0, stretches[-1].end - start)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)


def _xy(points: list[tuple[float, float]], start: float) -> tuple[list[float], list[float]]:
    return [at - start for at, _ in points], [value for _, value in points]


def _stack(axis: Any, curves: Curves, start: float) -> None:
    """Draw each curve's share of their sum."""
    curves = sorted(curves, key=lambda curve: int(curve[0]["draft_steps"]))
    times = sorted({at for _, points in curves for at, _ in points})
    values = [dict(points) for _, points in curves]
    totals = [sum(value.get(at, 0.0) for value in values) or math.nan for at in times]
    shares = [[value.get(at, 0.0) / total for at, total in zip(times, totals, strict=True)] for value in values]
    names = [f"{labels['draft_steps']} steps" for labels, _ in curves]
    colours = [_shade(int(labels["draft_steps"])) for labels, _ in curves]
    axis.stackplot([at - start for at in times], shares, labels=names, colors=colours)
    axis.set_ylim(0, 1)


def _shade(steps: int) -> Any:
    """Return a color for a depth or position: the deeper, the lighter."""
    from matplotlib import colormaps

    return colormaps["viridis"](steps / 7.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25.0, help="time per kind of text (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=FILE, help="output file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metrics-picture-") as scratch:
        folder = Path(scratch)
        with server(folder) as asked, Prometheus(folder / "prometheus", [asked]) as prometheus:
            asked.generate(models.prompts("easy")[0], 16, ignore_eos=True)
            stretches = serve(asked, options.seconds)
            data = read(prometheus, stretches)
    draw(data, stretches, options.output)


if __name__ == "__main__":
    main()
