"""Charts of individual rounds, which a report's figures do not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, Sample, SuiteResult
from sglang_adaptive.lab.simulate.score import chosen, ideal_seconds
from sglang_adaptive.report.blocks import Block, Heading, Picture, Section, Text
from sglang_adaptive.report.html import Chart

COMPARED = {
    "throughput": "throughput",
    "ema": "SGLang EMA, built-in config",
    "ema-all": "SGLang EMA, all tiers",
    "static": "best single depth",
}
"""Series of every chart, by color class; ``static`` stands for the best static depth of the suite."""
STARTS = ("cold-start", "stationary", "both")
"""Suites whose first rounds are drawn."""


def pictures(results: Mapping[str, SuiteResult]) -> list[Section]:
    """Return depth and regret on one trace per suite, and the first rounds of the suites of ``STARTS``."""
    drawn = {name: result for name, result in results.items() if series(result)}
    started = [drawn[name] for name in STARTS if name in drawn]
    sections = []
    if drawn:
        blocks = [block for result in drawn.values() for block in _sample(result)]
        note = Text("For each suite, the trace on which the policy in the title does worst, round by round.")
        sections.append(Section("Depth over time, and regret", [note, *blocks]))
    if started:
        sections.append(Section("Since the start", [_start(result) for result in started]))
    return sections


def series(result: SuiteResult) -> dict[str, str]:
    """Return the contender for each color class, among those that ran."""
    static = [name for name in result.scores if name.startswith("static-")]
    found = {kind: kind for kind in COMPARED} | {"static": max(static, key=result.mean_share, default="")}
    return {kind: name for kind, name in found.items() if name in result.scores}


def _sample(result: SuiteResult) -> Iterator[Block]:
    sample, kinds = result.sample, series(result)
    assert sample is not None, "a suite has at least one trace"
    least, most = sample.trace.batch.min(), sample.trace.batch.max()
    load = f"batch {least}" if least == most else f"batch {least} to {most}"
    share = result.worst_share(result.shown)
    yield Heading(f"{result.suite.title}, {load}; {result.shown} at {share:.3f} of the oracle")
    for kind, name in kinds.items():
        if kind != "static":
            legend = {kind: COMPARED[kind], "oracle": "oracle"}
            yield Picture(_depths(sample, kind, name), "draft steps by round", legend)
    yield Picture(_regret(sample, kinds), "milliseconds lost to the oracle so far", _legend(kinds))


def _start(result: SuiteResult) -> Picture:
    kinds = series(result)
    low = min(float(result.mean_curve(name).min()) for name in kinds.values())
    floor = np.floor(low * 20) / 20
    chart = Chart(150, (0, result.setting.rounds), (float(floor), 1.0), label="share of the oracle since the start")
    ticks = list(np.arange(floor, 1.001, 0.05))
    chart.y_ticks([(float(v), f"{v:.2f}") for v in ticks[:: max(1, len(ticks) // 5)]])
    chart.x_ticks(_round_ticks(result.setting.rounds))
    for kind, name in kinds.items():
        curve = result.mean_curve(name)
        middles = [min((i + 0.5) * BUCKET, result.setting.rounds) for i in range(len(curve))]
        chart.line(middles, curve.tolist(), kind)
    caption = f"{result.suite.title}: share of the oracle by round, mean over the traces"
    return Picture(chart.render(), caption, _legend(kinds))


def _legend(kinds: Mapping[str, str]) -> dict[str, str]:
    return {kind: COMPARED[kind] for kind in kinds}


def _depths(sample: Sample, kind: str, name: str) -> str:
    """Draw one policy's depth by round over the oracle's."""
    trace = sample.trace
    deepest = trace.ladder[-1]
    chart = Chart(92, (0, trace.rounds), (0, deepest), bottom=18, label=f"depth of {name} over time")
    chart.y_ticks([(steps, str(steps)) for steps in trace.ladder if steps in (0, 3, deepest)])
    chart.x_ticks(_round_ticks(trace.rounds))
    chart.steps(trace.oracle_depths.tolist(), "oracle")
    chart.steps(sample.depths[name].tolist(), kind)
    return chart.render()


def _regret(sample: Sample, kinds: Mapping[str, str]) -> str:
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


def _round_ticks(rounds: int) -> list[tuple[float, str]]:
    return [(v, f"{v:.0f}") for v in _nice_ticks(float(rounds))]


def _nice_ticks(high: float) -> list[float]:
    """Return about four round numbers from 0 up to *high*."""
    rough = high / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    return [float(v) for v in np.arange(0.0, high + 1e-9, step)]
