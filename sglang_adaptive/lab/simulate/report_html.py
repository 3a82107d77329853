"""The report as one HTML page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.report import figure, own_depth_notes
from sglang_adaptive.lab.simulate.results import BUCKET, Sample, SuiteResult
from sglang_adaptive.lab.simulate.score import chosen, ideal_seconds
from sglang_adaptive.lab.simulate.targets import Outcome
from sglang_adaptive.report.html import STYLE, Chart

# The plots of the report.


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


# The cards of the HTML report: one suite's plots each.


STARTS = ("cold-start", "stationary", "both")
"""Suites whose first rounds are drawn."""


def legend(results: Mapping[str, SuiteResult], oracle: bool = False) -> str:
    """Return the names of the series in their colours."""
    kinds = series(next(iter(results.values())))
    items = [("oracle", "oracle")] if oracle else []
    items += [(kind, COMPARED[kind]) for kind in kinds]
    entries = "".join(f'<li><i style="background:var(--{kind})"></i>{escape(name)}</li>' for kind, name in items)
    return f'<ul class="legend">{entries}</ul>'


def samples(results: Mapping[str, SuiteResult]) -> str:
    """Return a card for each suite: depth and regret on one trace."""
    shown = next(iter(results.values())).shown
    note = (
        f"<p>Of each suite the trace on which {escape(shown)} does worst, round by round. "
        "The oracle's depth lies in grey behind each policy's.</p>"
    )
    cards = "".join(_sample_card(name, result) for name, result in results.items())
    return f'{note}{legend(results, oracle=True)}<div class="cards">{cards}</div>'


def _sample_card(name: str, result: SuiteResult) -> str:
    kinds = series(result)
    if result.sample is None or not kinds:
        return ""
    strips = "".join(
        f"<figure><figcaption>{escape(COMPARED[kind])}: draft steps</figcaption>"
        f"{depth_chart(result.sample, kind, contender)}</figure>"
        for kind, contender in kinds.items()
        if kind != "static"
    )
    batch = result.sample.trace.batch
    load = f"batch {batch.min()}" if batch.min() == batch.max() else f"batch {batch.min()} to {batch.max()}"
    share = result.worst_share(result.shown)
    return (
        f'<div class="card"><h3>{escape(result.suite.title)}</h3>'
        f'<div class="soft">{escape(name)}, {load}; {escape(result.shown)} at {share:.3f} of the oracle</div>'
        f"{strips}<figure><figcaption>regret: milliseconds lost to the oracle so far</figcaption>"
        f"{regret_chart(result.sample, kinds)}</figure></div>"
    )


def starts(results: Mapping[str, SuiteResult]) -> str:
    """Return a card with the start-up curve of each suite in ``STARTS`` that ran."""
    cards = "".join(
        f'<div class="card"><h3>{escape(results[name].suite.title)}</h3>{start_chart(results[name])}</div>'
        for name in STARTS
        if name in results and series(results[name])
    )
    note = "<p>Share of the oracle by round, mean over the traces.</p>"
    return f'{note}{legend(results)}<div class="cards">{cards}</div>' if cards else ""


Results = Mapping[str, SuiteResult]
TITLE = "Speculative depth: simulated policies against an oracle"


def html_report(results: Results, judged: Sequence[Outcome], source: Mapping[str, Any]) -> str:
    """Return the page."""
    sections = {
        "Throughput against the oracle": _shares(results) if series(next(iter(results.values()))) else "",
        "Targets": _targets(judged) if judged else "",
        "Depth over time, and regret": samples(results),
        "Since the start": starts(results),
        "All figures": _tables(results),
        "How to read and repeat this": _reading(results, source),
    }
    titled = (f"<h2>{escape(title)}</h2>{content}" for title, content in sections.items() if content)
    body = _head(results, judged, source) + "".join(titled)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(results: Results, judged: Sequence[Outcome], source: Mapping[str, Any]) -> str:
    met = sum(outcome.met for outcome in judged)
    verdict = f"<p>{met} of {len(judged)} targets met.</p>" if judged else ""
    return (
        f"<h1>{TITLE}</h1>"
        f'<p class="soft">{len(results)} suites of {source["traces"]} traces of {source["rounds"]} rounds. '
        f"Round times: {escape(str(source['profile']))}. Acceptance is simulated.</p>{verdict}"
    )


def _shares(results: Results) -> str:
    return (
        f'<div class="card wide">{legend(results)}{shares_chart(results)}'
        '<p class="soft">Share of the oracle\'s throughput: dot at the mean of the traces, line down to the '
        "worst trace.</p></div>"
    )


def _targets(judged: Sequence[Outcome]) -> str:
    rows = []
    for outcome in judged:
        suite = "every suite" if outcome.target.suite == "*" else outcome.target.suite
        verdict = '<td class="met">met</td>' if outcome.met else '<td class="missed">missed</td>'
        sign = "≤" if outcome.ceiling else "≥"
        rows.append(
            f"<tr><td>{escape(suite)}<br><span class='soft'>{escape(outcome.title)}</span></td>"
            f"<td>{sign} {outcome.target.bound:g}</td><td>{figure(outcome.measured)}</td>{verdict}</tr>"
        )
    head = "<tr><th>suite, figure</th><th>target</th><th>measured</th><th></th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _tables(results: Results) -> str:
    names = list(next(iter(results.values())).scores)
    head = "<tr><th>suite</th>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"
    rows = []
    for suite, result in results.items():
        cells = "".join(
            f"<td>{result.mean_share(name):.3f} <span class='soft'>{result.worst_share(name):.3f}</span></td>"
            for name in names
        )
        rows.append(f"<tr><td>{escape(suite)}</td>{cells}</tr>")
    note = "<p>Share of the oracle: mean, then the worst trace.</p>"
    return f'{note}<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _reading(results: Results, source: Mapping[str, Any]) -> str:
    own = "".join(f"<p>{escape(note)}.</p>" for note in own_depth_notes(results))
    facts = {**{k: v for k, v in source.items() if k not in ("versions", "note")}, **source["versions"]}
    listed = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items())
    return (
        "<p>A share is the time that the oracle needs for the same expected tokens, in the same batches, "
        "over the time taken; both are expectations under the true process, so luck is in no score. "
        "Policies see drawn acceptances and a noisy clock, one round late, and all see the same draws.</p>"
        f"{own}<dl>{listed}</dl>"
    )
