"""The section of a demo: speed by phase, acceptance and depth by policy, and the depth over time."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.report.blocks import Block, Facts, Picture, Section, Table, Text
from sglang_adaptive.report.html import Chart
from sglang_adaptive.report.results import Result, source


def section(result: Result) -> Section:
    """Return the section of one demo."""
    data = result.data
    policies: dict[str, dict[str, Any]] = data["policies"]
    blocks: list[Block] = [Text(_verdict(data)), _speed(data["phases"], policies), _depths(policies)]
    blocks += [_timeline(data, key) for key, policy in policies.items() if policy["adaptive"]]
    notes = " ".join(f"{name.replace('_', ' ')}: {text}." for name, text in data.get("notes", {}).items())
    return Section(f"Demo on the CPU engine ({result.name})", [*blocks, Text(notes), Facts(source(data))])


def _verdict(data: dict[str, Any]) -> str:
    if data["failures"]:
        return "FAILED: " + "; ".join(data["failures"])
    requests = sum(phase["requests"] for phase in data["phases"])
    return (
        f"In every run all {requests} requests came out token for token as without speculation; "
        f"the adaptive policies moved the depth {data['switches']} times. The speed shows behavior only: the CPU "
        "engine is for trying out and testing."
    )


def _speed(phases: list[dict[str, Any]], policies: dict[str, dict[str, Any]]) -> Table:
    plain = policies["none"]["tokens_per_second"] if "none" in policies else None
    fixed = [policy["tokens_per_second"] for policy in policies.values() if policy["forced_steps"] is not None]
    head = ["tokens per second", *(phase["name"] for phase in phases), "overall", "x no speculation", "x best static"]
    rows = []
    for key, policy in policies.items():
        overall = policy["tokens_per_second"]
        cells = [f"{phase['policies'][key]['tokens_per_second']:.0f}" for phase in phases]
        ratios = [f"{overall / base:.2f}" if base else "-" for base in (plain, max(fixed, default=None))]
        rows.append([policy["title"], *cells, f"{overall:.0f}", *ratios])
    return Table(head, rows, _adaptive(policies))


def _depths(policies: dict[str, dict[str, Any]]) -> Table:
    depths = sorted({int(depth) for policy in policies.values() for depth in policy["rounds_by_depth"]})
    rows = []
    for policy in policies.values():
        rounds = {int(depth): count for depth, count in policy["rounds_by_depth"].items()}
        total = sum(rounds.values())
        shares = [f"{rounds[depth] / total:.0%}" if rounds.get(depth) else "-" for depth in depths]
        length = policy["accept_length"]
        rows.append([policy["title"], "-" if length is None else f"{length:.2f}", str(policy["switches"]), *shares])
    head = ["policy", "accept length", "switches", *(f"rounds at depth {depth}" for depth in depths)]
    return Table(head, rows, _adaptive(policies))


def _timeline(data: dict[str, Any], key: str) -> Picture:
    """Draw the depth of one policy over the measured seconds, with a line and a name at the start of each phase."""
    policy = data["policies"][key]
    tiers = policy["tiers"]
    seconds = [phase["policies"][key]["seconds"] for phase in data["phases"]]
    end = sum(seconds)
    chart = Chart(130, (0.0, end), (min(tiers), max(tiers)), label=f"draft depth of {policy['title']} over time")
    chart.y_ticks([(depth, str(depth)) for depth in tiers])
    starts = [sum(seconds[:index]) for index in range(len(seconds))]
    chart.x_ticks([(start, "") for start in starts], grid=True)
    names = [phase["name"] for phase in data["phases"]]
    chart.x_ticks([(start + of / 2, name) for start, of, name in zip(starts, seconds, names, strict=True)])
    points = [(point["seconds"], point["steps"]) for point in data["timeline"] if point["policy"] == key]
    xs, ys = [points[0][0]], [points[0][1]]
    for moment, steps in points[1:]:
        xs += [moment, moment]
        ys += [ys[-1], steps]
    chart.line([*xs, end], [*ys, ys[-1]], key)
    return Picture(chart.render(), f"{policy['title']}: draft depth over {end:.0f} measured seconds, phase by phase")


def _adaptive(policies: dict[str, dict[str, Any]]) -> frozenset[int]:
    return frozenset(index for index, policy in enumerate(policies.values()) if policy["adaptive"])
