"""The section of a simulation: shares of the oracle by suite and policy, and the targets."""

from __future__ import annotations

import math
from typing import Any

from sglang_adaptive.report.blocks import Block, Facts, Picture, Section, Table, Text
from sglang_adaptive.report.colours import colour
from sglang_adaptive.report.results import Result, source
from sglang_adaptive.report.svg import Chart

OURS = "throughput"
ROW = 46.0


def section(result: Result) -> Section:
    """Return the section of one simulation."""
    data = result.data
    suites: dict[str, dict[str, Any]] = data["suites"]
    policies = list(dict.fromkeys(name for suite in suites.values() for name in suite["policies"]))
    blocks: list[Block] = [Text(_verdict(data))]
    shown = _shown(suites, policies)
    if shown:
        blocks.append(Picture(_chart(suites, shown), f"Share of the oracle: dot at the mean of the traces, line down "
                                                     f"to the worst trace; {', '.join(shown)}."))  # fmt: skip
    blocks.append(_shares(suites, policies))
    if data["targets"]:
        blocks.append(_targets(data["targets"]))
    return Section(f"Simulation ({result.name})", [*blocks, Text(data.get("definition", "")), Facts(source(data))])


def _verdict(data: dict[str, Any]) -> str:
    targets = data["targets"]
    met = sum(target["met"] for target in targets)
    said = f"{met} of {len(targets)} targets met. " if targets else ""
    return f"{said}Acceptance is simulated; a share of 1 is the throughput of an oracle that knows it."


def _shares(suites: dict[str, dict[str, Any]], policies: list[str]) -> Table:
    rows = []
    for name, suite in suites.items():
        cells = [suite["policies"].get(policy) for policy in policies]
        rows.append([name, *("-" if cell is None else f"{cell['mean']:.3f} ({cell['worst']:.3f})" for cell in cells)])
    return Table(["share of the oracle: mean (worst trace)", *policies], rows)


def _targets(targets: list[dict[str, Any]]) -> Table:
    rows = []
    for target in targets:
        suite = "every suite" if target["suite"] == "*" else target["suite"]
        bound = f"at {target['at']} {target['bound']:g}"
        said = "met" if target["met"] else "MISSED"
        rows.append([f"{suite}: {target['figure']}", bound, f"{target['measured']:g}", said])
    return Table(["target", "bound", "measured", ""], rows, frozenset(i for i, t in enumerate(targets) if not t["met"]))


def _shown(suites: dict[str, dict[str, Any]], policies: list[str]) -> list[str]:
    """Return the policies that are drawn: ours, SGLang's, and the single depth with the best mean."""
    fixed = [name for name in policies if name.startswith("static-")]
    everywhere = [name for name in fixed if all(name in suite["policies"] for suite in suites.values())]
    best = max(everywhere, key=lambda name: sum(s["policies"][name]["mean"] for s in suites.values()), default=None)
    return [name for name in policies if name in (OURS, "ema", "ema-all", best)]


def _chart(suites: dict[str, dict[str, Any]], shown: list[str]) -> str:
    figures = [suite["policies"][name] for suite in suites.values() for name in shown if name in suite["policies"]]
    floor = math.floor(10 * min(figure["worst"] for figure in figures)) / 10
    chart = Chart(len(suites) * ROW + 30, (floor, 1.0), (0, 1), left=96, label="share of the oracle by suite")
    ticks = [floor + index / 10 for index in range(round(10 * (1.0 - floor)) + 1)]
    chart.x_ticks([(tick, f"{tick:.1f}") for tick in ticks], grid=True)
    for index, (suite, content) in enumerate(suites.items()):
        top = chart.top + index * ROW
        if index % 2 == 0:
            chart.band(top, top + ROW)
        chart.text(chart.left - 8, top + ROW / 2 + 3, suite, "end", "label")
        for place, name in enumerate(shown):
            if (figure := content["policies"].get(name)) is not None:
                at = round(top + ROW * (place + 1) / (len(shown) + 1), 1)
                title = f"{suite}, {name}: mean {figure['mean']:.3f}, worst trace {figure['worst']:.3f}"
                chart.range_dot(figure["worst"], figure["mean"], at, colour(name), title)
    return chart.render()
