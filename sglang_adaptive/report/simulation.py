"""The sections of simulations: suites, and what servers recorded (``--suite real``, ``--trace``)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text
from sglang_adaptive.report.html import Chart, colour
from sglang_adaptive.report.results import Result, source

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


OVER = " over best single"


def text(result: Result) -> Section:
    """Return the section of one simulation of recorded text: the gates, and every scene of each recording."""
    data = result.data
    gates = data["gates"]
    bounded = [gate for gate in gates if gate["bound"] is not None]
    met = f"{sum(gate['met'] for gate in bounded)} of {len(bounded)} gates met." if bounded else "No gate was judged."
    blocks: list[Block] = [Text(met)]
    if gates:
        blocks.append(_gates(gates))
    cells = [_cell(cell, data.get("columns")) for cell in data["cells"]]
    for name in dict.fromkeys(cell["texts"] for cell in cells):
        blocks += [Heading(name), _scenes([cell for cell in cells if cell["texts"] == name])]
    more = [Text(data["definition"]), Facts(source(data))]
    return Section(f"Simulation of recorded text ({result.name})", [*blocks, *more])


def traffic(result: Result) -> Section:
    """Return the section of one replay of a server's rounds: what was seen, and everybody at each batch size."""
    data = result.data
    sizes = [int(size) for size in data["rounds_by_batch_size"]]
    summary = f"{data['rounds']} rounds, {data['requests']} requests, batch {min(sizes)} to {max(sizes)}."
    blocks: list[Block] = [Text(summary), *map(Text, data["doubts"]), _seen(data["depths"])]
    trust = {f"always {depth['steps']}": depth["trust"] for depth in data["depths"]}
    for batch in data["batches"]:
        best = batch["best_single"]
        rate = f"{batch['tokens_per_second_at_best_single']:.0f} tokens/s"
        blocks += [Heading(f"Batch {batch['batch_size']}: over {best} steps, {rate}"), _batch(batch, trust)]
    more = [Text(data["definition"]), Facts(source(data))]
    return Section(f"Simulation of traffic ({result.name})", [*blocks, *more])


def _cell(cell: Any, columns: list[str] | None) -> dict[str, Any]:
    """Return texts, scene, load, best single depth, and the shares by name of a cell."""
    if columns is None:
        shares = {name: score["over_single"] for name, score in cell["scores"].items()}
        return {**cell, "shares": shares}
    found = dict(zip(columns, cell, strict=True))  # as python -m benchmarks.real_text writes it
    shares = {name.removesuffix(OVER): share for name, share in found.items() if name.endswith(OVER)}
    return {**found, "best_single": found["best single"], "shares": shares}


def _gates(gates: list[dict[str, Any]]) -> Table:
    rows = []
    for gate in gates:
        bounded = gate["bound"] is not None
        bound = f"at {gate['at']} {gate['bound']:g}" if bounded else "-"
        told = "-" if not bounded else "met" if gate["met"] else "MISSED"
        rows.append([gate["figure"], bound, f"{gate['measured']:g}", told])
    missed = frozenset(index for index, row in enumerate(rows) if row[-1] == "MISSED")
    return Table(["gate", "bound", "measured", ""], rows, missed)


def _scenes(cells: list[dict[str, Any]]) -> Table:
    """Return a row a scene and load, with the mean and the worst over the cost profiles."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["shares"]))
    rows = []
    for load, scene in dict.fromkeys((cell["load"], cell["scene"]) for cell in cells):
        own = [cell for cell in cells if (cell["load"], cell["scene"]) == (load, scene)]
        best = ", ".join(map(str, sorted({cell["best_single"] for cell in own})))
        row = [f"batch {load}, {scene}" if load.isdigit() else f"{load}, {scene}", best]
        for name in names:
            shares = [share for cell in own if (share := cell["shares"].get(name)) is not None]
            row.append(f"{fmean(shares):.3f} ({min(shares):.3f})" if shares else "-")
        rows.append(row)
    return Table(["over the best single depth: mean (worst profile)", "best single", *names], rows)


def _seen(depths: list[dict[str, Any]]) -> Table:
    rows = []
    for depth in depths:
        run = depth["tokens_a_round_when_run"]
        figures = ["-" if run is None else f"{run:.2f}", f"{depth['tokens_a_round_recut']:.2f}"]
        share = f"{depth['share_seen_here_or_deeper']:.0%}"
        rows.append([f"{depth['steps']} steps", str(depth["rounds_run"]), *figures, share, depth["trust"]])
    return Table(
        ["depth", "rounds run", "tokens a round, then", "tokens a round, re-cut", "seen at or above", "trust"], rows
    )


def _batch(batch: dict[str, Any], trust: dict[str, str]) -> Table:
    switches = batch["switches_an_hour"]
    rows = [
        [name, f"{share:.3f}", f"{switches[name]:.0f}" if name in switches else "-", trust.get(name, "-")]
        for name, share in batch["over_best_single"].items()
    ]
    best = frozenset(index for index, row in enumerate(rows) if row[0] == f"always {batch['best_single']}")
    return Table(["", "over best single", "switches an hour", "trust"], rows, best)
