"""The sections of simulations: suites, and server recordings (``--suite real``, ``--trace``)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from sglang_adaptive.command_line import listed
from sglang_adaptive.lookups.tally import lookup_words
from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text
from sglang_adaptive.report.html import colour, dot_chart
from sglang_adaptive.report.results import Result, source

OURS = "throughput"


def drawn(result: Result) -> Section:
    """Return the section of one simulation of drawn acceptance."""
    data = result.data
    suites: dict[str, dict[str, Any]] = data["suites"]
    policies = list(dict.fromkeys(name for suite in suites.values() for name in suite["policies"]))
    blocks: list[Block] = [Text(_verdict(data))]
    shown = _shown(suites, policies)
    if shown:
        caption = "Share of the oracle's throughput: dot at the mean of the traces, line down to the worst trace."
        dots = {}
        for name, suite in suites.items():
            found = {policy: suite["policies"][policy] for policy in shown if policy in suite["policies"]}
            dots[name] = [(policy, figures["worst"], figures["mean"]) for policy, figures in found.items()]
        chart = dot_chart(dots, "share of the oracle by suite", row=46.0)
        blocks.append(Picture(chart, caption, {colour(name): name for name in shown}))
    calm = [name for name in policies if not name.startswith("static-") or name == "static-0"]
    blocks += [
        Heading("Share of the oracle's throughput, mean over the traces"),
        _by_suite(suites, policies, lambda found: f"{found['mean']:.3f}"),
        Heading("Share of the oracle's throughput, worst trace"),
        _by_suite(suites, policies, lambda found: f"{found['worst']:.3f}"),
        Heading("Switches in 200 settled rounds / worst 500 rounds against zero steps"),
        _by_suite(suites, calm, _behaviour),
    ]
    if data["targets"]:
        blocks.append(_judged("target", data["targets"]))
    return Section(f"Simulation ({result.name})", [*blocks, *_end(data)])


def _end(data: dict[str, Any]) -> list[Block]:
    left_out = data["provenance"].get("left_out", ())
    return [Text(data["definition"]), *map(Text, left_out), Facts(source(data))]


def _verdict(data: dict[str, Any]) -> str:
    suites = list(data["suites"].values())
    named = "1 suite" if len(suites) == 1 else f"{len(suites)} suites"
    said = f"{named} of {suites[0]['traces']} traces of {suites[0]['rounds']} rounds. "
    if targets := data["targets"]:
        said += f"{sum(target['met'] for target in targets)} of {len(targets)} targets met. "
    return f"{said}Acceptance is simulated; a share of 1 is the throughput of an oracle that knows it."


def _by_suite(suites: dict[str, dict[str, Any]], policies: list[str], shown: Callable[[dict[str, Any]], str]) -> Table:
    rows = []
    for name, suite in suites.items():
        found = [suite["policies"].get(policy) for policy in policies]
        rows.append([name, *("-" if figures is None else shown(figures) for figures in found)])
    return Table(["suite", *policies], rows)


def _behaviour(figures: dict[str, Any]) -> str:
    return f"{figures['switches_per_200_rounds']:.1f} / {figures['worst_500_rounds_against_zero_steps']:.3f}"


def _judged(kind: str, judged: list[dict[str, Any]]) -> Table:
    """Return one row per target or gate, with the result of an oracle if one was played."""
    played = any("hindsight" in one for one in judged)
    rows = []
    for one in judged:
        suite = one.get("suite")
        name = f"{'every suite' if suite == '*' else suite}: {one['figure']}" if suite else one["figure"]
        row = [name, "-" if one["bound"] is None else f"at {one['at']} {one['bound']:g}", f"{one['measured']:g}"]
        if played:
            row.append(f"{one['hindsight']:g}" if "hindsight" in one else "-")
        rows.append([*row, _said(one)])
    missed = frozenset(index for index, row in enumerate(rows) if row[-1].startswith("MISSED"))
    return Table([kind, "bound", "measured", *(["in hindsight"] if played else []), ""], rows, missed)


def _said(one: dict[str, Any]) -> str:
    if one["bound"] is None:
        return "-"
    if one["met"]:
        return "met"
    best, bound = one.get("hindsight", one["bound"]), one["bound"]
    beyond = best < bound if one["at"] == "least" else best > bound
    return "MISSED, in hindsight too" if beyond else "MISSED"


def _shown(suites: dict[str, dict[str, Any]], policies: list[str]) -> list[str]:
    """Return the policies that are drawn: ours, SGLang's, and the single depth with the best mean."""
    fixed = [name for name in policies if name.startswith("static-")]
    everywhere = [name for name in fixed if all(name in suite["policies"] for suite in suites.values())]
    best = max(everywhere, key=lambda name: sum(s["policies"][name]["mean"] for s in suites.values()), default=None)
    return [name for name in policies if name in (OURS, "ema", "ema-all", best)]


OVER = " over best single"


def recorded(result: Result) -> Section:
    """Return the section of one simulation of recorded text: the gates, and every scene of each recording."""
    data = result.data
    gates = data["gates"]
    bounded = [gate for gate in gates if gate["bound"] is not None]
    met = f"{sum(gate['met'] for gate in bounded)} of {len(bounded)} gates met." if bounded else "No gate was judged."
    blocks: list[Block] = [Text(met)]
    if gates:
        blocks.append(_judged("gate", gates))
    cells = [_cell(cell, data.get("columns")) for cell in data["cells"]]
    for name in dict.fromkeys(cell["texts"] for cell in cells):
        title = f"{name}: over the best single depth, mean (worst) of the cost profiles"
        blocks += [Heading(title), _scenes([cell for cell in cells if cell["texts"] == name])]
    return Section(f"Simulation of recorded text ({result.name})", [*blocks, *_end(data)])


def traffic(result: Result) -> Section:
    """Return the section of one replay of a server's rounds: what was seen, and every contender at each batch size."""
    data = result.data
    sizes = [int(size) for size in data["rounds_by_batch_size"]]
    lost = f", {data['rounds_lost']} not recorded" if data["rounds_lost"] else ""
    played = listed([batch["batch_size"] for batch in data["batches"]])
    summary = (
        f"{data['rounds']} rounds{lost}, {data['requests']} requests, batch {min(sizes)} to {max(sizes)}. "
        f"Played as closed loops of {played}, round times of {data['provenance']['profile']}."
    )
    blocks: list[Block] = [Text(summary), *map(Text, data["doubts"]), _seen(data["depths"])]
    trust = {f"always {depth['steps']}": depth["trust"] for depth in data["depths"]}
    for batch in data["batches"]:
        rate = f"{batch['tokens_per_second_at_best_single']:.0f} tokens/s"
        title = f"Batch {batch['batch_size']}: over {batch['best_single']} steps, the best single depth, {rate}"
        label = f"batch {batch['batch_size']}: tokens a second over the best single depth"
        dots = {name: [(name, share, share)] for name, share in batch["over_best_single"].items()}
        blocks += [Heading(title), Picture(dot_chart(dots, label, row=20.0), label), _batch(batch, trust)]
    blocks += map(Text, lookup_words(data["lookups"]))
    return Section(f"Simulation of traffic ({result.name})", [*blocks, *_end(data)])


def _cell(cell: Any, columns: list[str] | None) -> dict[str, Any]:
    """Return texts, scene, load, best single depth, and the shares by name of a cell."""
    if columns is None:
        shares = {name: score["over_single"] for name, score in cell["scores"].items()}
        return {**cell, "shares": shares}
    found = dict(zip(columns, cell, strict=True))  # as python -m benchmarks.real_text writes it
    shares = {name.removesuffix(OVER): share for name, share in found.items() if name.endswith(OVER)}
    return {**found, "best_single": found["best single"], "shares": shares}


def _scenes(cells: list[dict[str, Any]]) -> Table:
    """Return one row per scene and load, with the mean and the worst over the cost profiles."""
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
    return Table(["scene", "best single", *names], rows)


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
