"""What ``simulate`` prints: sentences, and tables of aligned columns.

Each public function takes the name of what was played and its report as JSON builtins, and returns the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sglang_adaptive.command_line import listed

Json = Mapping[str, Any]


def drawn(name: str, report: Json) -> str:
    """Return the text of the suites of drawn acceptance on one cost profile."""
    suites: dict[str, Json] = report["suites"]
    policies = list(dict.fromkeys(policy for suite in suites.values() for policy in suite["policies"]))
    calm = [policy for policy in policies if not policy.startswith("static-") or policy == "static-0"]
    parts = [
        f"Simulation ({name})",
        _verdict(report),
        "Share of the oracle's throughput, mean over the traces",
        _by_suite(suites, policies, lambda found: f"{found['mean']:.3f}"),
        "Share of the oracle's throughput, worst trace",
        _by_suite(suites, policies, lambda found: f"{found['worst']:.3f}"),
        "Switches in 200 settled rounds / worst 500 rounds against zero steps",
        _by_suite(suites, calm, _behaviour),
    ]
    if report["targets"]:
        parts.append(_judged(report["targets"]))
    return _joined(parts, report)


def recorded(name: str, report: Json) -> str:
    """Return the text of recorded acceptance: every scene of each recording."""
    cells, parts = report["cells"], [f"Simulation of recorded text ({name})"]
    for texts in dict.fromkeys(cell["texts"] for cell in cells):
        parts.append(f"{texts}: over the best single depth, mean (worst) of the cost profiles")
        parts.append(_scenes([cell for cell in cells if cell["texts"] == texts]))
    return _joined(parts, report)


def traffic(name: str, report: Json) -> str:
    """Return the text of a replay of a server's rounds: what was seen, and every contender at each batch size."""
    sizes = [int(size) for size in report["rounds_by_batch_size"]]
    lost = f", {report['rounds_lost']} not recorded" if report["rounds_lost"] else ""
    played = listed([batch["batch_size"] for batch in report["batches"]])
    parts = [
        f"Simulation of traffic ({name})",
        f"{report['rounds']} rounds{lost}, {report['requests']} requests, batch {min(sizes)} to {max(sizes)}. "
        f"Played as closed loops of {played}, round times of {report['provenance']['profile']}.",
        *report["doubts"],
        _seen(report["depths"]),
    ]
    trust = {f"always {depth['steps']}": depth["trust"] for depth in report["depths"]}
    for batch in report["batches"]:
        rate = f"{batch['tokens_per_second_at_best_single']:.0f} tokens/s"
        parts += [
            f"Batch {batch['batch_size']}: over {batch['best_single']} steps, the best single depth, {rate}",
            _batch(batch, trust),
        ]
    return _joined(parts, report)


def _joined(parts: Sequence[str], report: Json) -> str:
    """Return *parts*, what the figures mean and which policies are left out, as paragraphs."""
    return "\n\n".join([*parts, report["definition"], *report["provenance"].get("left_out", ())])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns; the first names the row, the others are figures."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip() for name, *cells in lines
    )


def _verdict(report: Json) -> str:
    suites = list(report["suites"].values())
    named = "1 suite" if len(suites) == 1 else f"{len(suites)} suites"
    traces = listed(sorted({suite["traces"] for suite in suites}), "or")
    said = f"{named} of {traces} traces of {suites[0]['rounds']} rounds. "
    if targets := report["targets"]:
        said += f"{sum(target['met'] for target in targets)} of {len(targets)} targets met. "
    return f"{said}Acceptance is simulated; a share of 1 is the throughput of an oracle that knows it."


def _by_suite(suites: Mapping[str, Json], policies: Sequence[str], shown: Callable[[Json], str]) -> str:
    rows = []
    for name, suite in suites.items():
        found = [suite["policies"].get(policy) for policy in policies]
        rows.append([name, *("-" if figures is None else shown(figures) for figures in found)])
    return table(["suite", *policies], rows)


def _behaviour(figures: Json) -> str:
    return f"{figures['switches_per_200_rounds']:.1f} / {figures['worst_500_rounds_against_zero_steps']:.3f}"


def _judged(targets: Sequence[Json]) -> str:
    rows = []
    for one in targets:
        name = f"{'every suite' if one['suite'] == '*' else one['suite']}: {one['figure']}"
        said = "met" if one["met"] else "MISSED"
        rows.append([name, f"at {one['at']} {one['bound']:g}", f"{one['measured']:g}", said])
    return table(["target", "bound", "measured", ""], rows)


def _scenes(cells: Sequence[Json]) -> str:
    """Return one row per scene and load, with the mean and the worst over the cost profiles."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["scores"]))
    rows = []
    for load, scene in dict.fromkeys((cell["load"], cell["scene"]) for cell in cells):
        own = [cell for cell in cells if (cell["load"], cell["scene"]) == (load, scene)]
        best = ", ".join(map(str, sorted({cell["best_single"] for cell in own})))
        row = [f"batch {load}, {scene}" if load.isdigit() else f"{load}, {scene}", best]
        for name in names:
            shares = [cell["scores"][name]["over_single"] for cell in own if name in cell["scores"]]
            row.append(f"{fmean(shares):.3f} ({min(shares):.3f})" if shares else "-")
        rows.append(row)
    return table(["scene", "best single", *names], rows)


def _seen(depths: Sequence[Json]) -> str:
    rows = []
    for depth in depths:
        run = depth["tokens_a_round_when_run"]
        figures = ["-" if run is None else f"{run:.2f}", f"{depth['tokens_a_round_recut']:.2f}"]
        share = f"{depth['share_seen_here_or_deeper']:.0%}"
        rows.append([f"{depth['steps']} steps", str(depth["rounds_run"]), *figures, share, depth["trust"]])
    return table(
        ["depth", "rounds run", "tokens a round, then", "tokens a round, re-cut", "seen at or above", "trust"], rows
    )


def _batch(batch: Json, trust: Mapping[str, str]) -> str:
    switches = batch["switches_an_hour"]
    rows = [
        [name, f"{share:.3f}", f"{switches[name]:.0f}" if name in switches else "-", trust.get(name, "-")]
        for name, share in batch["over_best_single"].items()
    ]
    return table(["", "over best single", "switches an hour", "trust"], rows)
