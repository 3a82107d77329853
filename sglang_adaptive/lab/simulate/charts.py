"""The plots of the report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, Sample, SuiteResult
from sglang_adaptive.lab.simulate.score import chosen, ideal_seconds
from sglang_adaptive.report.html import Chart

COMPARED = {
    "throughput": "throughput",
    "ema": "SGLang EMA, built-in config",
    "ema-all": "SGLang EMA, all tiers",
    "static": "best single depth",
}
"""Series of every plot, by colour class; ``static`` stands for the best static depth of the suite."""


def best_static(result: SuiteResult) -> str | None:
    """Return the static depth with the highest mean share, None when none ran."""
    names = [name for name in result.scores if name.startswith("static-")]
    return max(names, key=result.mean_share, default=None)


def series(result: SuiteResult) -> dict[str, str]:
    """Return the contender behind each colour class, for those that ran."""
    found = {kind: best_static(result) if kind == "static" else kind for kind in COMPARED}
    return {kind: name for kind, name in found.items() if name in result.scores}


def shares_chart(results: Mapping[str, SuiteResult]) -> str:
    """Draw a row for each suite: a dot at the mean share, a whisker down to the worst trace."""
    row = 46.0
    low = min(result.worst_share(name) for result in results.values() for name in series(result).values())
    floor = np.floor(low * 10) / 10
    chart = Chart(len(results) * row + 30, (float(floor), 1.0), (0, 1), left=96, label="share of the oracle by suite")
    for index in range(0, len(results), 2):
        chart.band(chart.top + index * row, chart.top + (index + 1) * row)
    chart.x_ticks([(v, f"{v:.1f}") for v in np.arange(floor, 1.01, 0.1)], grid=True)
    for index, (suite, result) in enumerate(results.items()):
        top = chart.top + index * row
        chart.text(chart.left - 8, top + row / 2 + 3, suite, "end", "label")
        kinds = series(result)
        for place, (kind, name) in enumerate(kinds.items()):
            mean, worst = result.mean_share(name), result.worst_share(name)
            title = f"{suite}, {name}: mean {mean:.3f}, worst trace {worst:.3f}"
            chart.range_dot(worst, mean, round(top + row * (place + 1) / (len(kinds) + 1), 1), kind, title)
    return chart.render()


def depth_chart(sample: Sample, kind: str, name: str) -> str:
    """Draw one policy's depth by round over the oracle's."""
    trace = sample.trace
    deepest = trace.ladder[-1]
    chart = Chart(92, (0, trace.rounds), (0, deepest), bottom=18, label=f"depth of {name} over time")
    chart.y_ticks([(steps, str(steps)) for steps in trace.ladder if steps in (0, 3, deepest)])
    chart.x_ticks(_round_ticks(trace.rounds))
    chart.steps(trace.oracle_depths.tolist(), "oracle")
    chart.steps(sample.depths[name].tolist(), kind)
    return chart.render()


def regret_chart(sample: Sample, kinds: Mapping[str, str]) -> str:
    """Draw the milliseconds lost to the oracle since the start of the trace, by round."""
    trace = sample.trace
    rounds = np.unique(np.linspace(1, trace.rounds, 120).astype(int)) - 1
    curves = {}
    for kind, name in kinds.items():
        taken = chosen(trace.seconds, sample.depths[name])
        lost = np.cumsum(taken - ideal_seconds(trace, sample.depths[name]))
        curves[kind] = 1000.0 * lost[rounds]
    high = max(1.0, max(float(curve[-1]) for curve in curves.values())) * 1.05
    chart = Chart(150, (0, trace.rounds), (0, high), left=44, label="milliseconds lost to the oracle so far")
    chart.y_ticks([(v, f"{v:.0f}") for v in _nice_ticks(high)])
    chart.x_ticks(_round_ticks(trace.rounds))
    for kind, curve in curves.items():
        chart.line((rounds + 1).tolist(), curve.tolist(), kind)
    return chart.render()


def start_chart(result: SuiteResult) -> str:
    """Draw the share of the oracle since the start, averaged over the traces."""
    kinds = series(result)
    low = min(float(result.mean_curve(name).min()) for name in kinds.values())
    floor = np.floor(low * 20) / 20
    chart = Chart(150, (0, result.setting.rounds), (float(floor), 1.0), label="share of the oracle since the start")
    ticks = [v for v in np.arange(floor, 1.001, 0.05)]
    chart.y_ticks([(float(v), f"{v:.2f}") for v in ticks[:: max(1, len(ticks) // 5)]])
    chart.x_ticks(_round_ticks(result.setting.rounds))
    for kind, name in kinds.items():
        curve = result.mean_curve(name)
        middles = [min((i + 0.5) * BUCKET, result.setting.rounds) for i in range(len(curve))]
        chart.line(middles, curve.tolist(), kind)
    return chart.render()


def _round_ticks(rounds: int) -> list[tuple[float, str]]:
    return [(v, f"{v:.0f}") for v in _nice_ticks(float(rounds))]


def _nice_ticks(high: float) -> list[float]:
    """Return about four round numbers from 0 up to *high*."""
    rough = high / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    return [float(v) for v in np.arange(0.0, high + 1e-9, step)]
