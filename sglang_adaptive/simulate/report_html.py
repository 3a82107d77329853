"""The report as one HTML page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from sglang_adaptive.simulate import charts
from sglang_adaptive.simulate.page_style import STYLE
from sglang_adaptive.simulate.report_text import figure
from sglang_adaptive.simulate.results import SuiteResult
from sglang_adaptive.simulate.targets import Outcome

Results = Mapping[str, SuiteResult]


def html_report(results: Results, judged: Sequence[Outcome], source: Mapping[str, Any]) -> str:
    """Return the page."""
    body = "".join(
        [
            _head(results, judged, source),
            _section("Throughput against the oracle", _shares(results)),
            _section("Targets", _targets(judged)) if judged else "",
            _section("Depth over time, and regret", _samples(results)),
            _section("Since the start", _starts(results)),
            _section("All figures", _tables(results)),
            _section("How to read and repeat this", _reading(results, source)),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Speculative depth: simulated policies against an oracle</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _head(results: Results, judged: Sequence[Outcome], source: Mapping[str, Any]) -> str:
    met = sum(outcome.met for outcome in judged)
    verdict = f"<p>{met} of {len(judged)} targets met.</p>" if judged else ""
    return (
        "<h1>Speculative depth: simulated policies against an oracle</h1>"
        f'<p class="soft">{len(results)} suites of {source["traces"]} traces, {source["rounds"]} rounds each; '
        f"round times from {escape(str(source['profile']))}; acceptance simulated.</p>{verdict}"
    )


def _legend(kinds: Mapping[str, str], oracle: bool = False) -> str:
    items = [(kind, charts.COMPARED[kind]) for kind in kinds]
    if oracle:
        items.insert(0, ("oracle", "oracle"))
    entries = "".join(
        f'<li><i style="background:var(--{kind})"></i>{escape(name)}</li>' for kind, name in items
    )
    return f'<ul class="legend">{entries}</ul>'


def _kinds(results: Results) -> dict[str, str]:
    return charts.series(next(iter(results.values())))


def _shares(results: Results) -> str:
    if not _kinds(results):
        return ""
    return (
        f'<div class="card wide">{_legend(_kinds(results))}{charts.shares_chart(results)}'
        '<p class="soft">Share of the oracle\'s throughput: dot at the mean of the traces, line down to the worst '
        "trace.</p></div>"
    )


def _targets(judged: Sequence[Outcome]) -> str:
    rows = []
    for outcome in judged:
        suite = "every suite" if outcome.target.suite == "*" else outcome.target.suite
        verdict = '<td class="met">met</td>' if outcome.met else '<td class="missed">missed</td>'
        sign = "≤" if outcome.ceiling else "≥"
        rows.append(
            f'<tr><td>{escape(suite)}</td><td class="words">{escape(outcome.title)}</td>'
            f"<td>{sign} {outcome.target.bound:g}</td><td>{figure(outcome.measured)}</td>{verdict}</tr>"
        )
    head = '<tr><th>suite</th><th class="words">figure</th><th>target</th><th>measured</th><th></th></tr>'
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _samples(results: Results) -> str:
    cards = [_sample_card(name, result) for name, result in results.items()]
    note = "<p>The first trace of each suite, round by round. Behind each policy's depth, in grey, the oracle's.</p>"
    return f'{note}{_legend(_kinds(results), oracle=True)}<div class="cards">{"".join(cards)}</div>'


def _sample_card(name: str, result: SuiteResult) -> str:
    if result.sample is None:
        return ""
    kinds = charts.series(result)
    strips = "".join(
        f"<figure><figcaption>{escape(charts.COMPARED[kind])}: draft steps</figcaption>"
        f"{charts.depth_chart(result.sample, kind, contender)}</figure>"
        for kind, contender in kinds.items()
        if kind != "static"
    )
    regret = ""
    if kinds:
        regret = (
            "<figure><figcaption>regret: milliseconds lost to the oracle so far</figcaption>"
            f"{charts.regret_chart(result.sample, kinds)}</figure>"
        )
    batch = result.sample.trace.batch
    load = f"batch {batch.min()}" if batch.min() == batch.max() else f"batch {batch.min()} to {batch.max()}"
    return (
        f'<div class="card"><h3>{escape(result.suite.title)}</h3>'
        f'<div class="soft">{escape(name)}, {load}</div>{strips}{regret}</div>'
    )


def _starts(results: Results) -> str:
    cards = "".join(
        f'<div class="card"><h3>{escape(result.suite.title)}</h3>{charts.start_chart(result)}</div>'
        for name, result in results.items()
        if name in ("cold-start", "stationary", "both") and charts.series(result)
    )
    note = "<p>Share of the oracle by round, mean over the traces.</p>"
    return (
        f'{note}{_legend(_kinds(results))}<div class="cards">{cards}</div>'
        if cards
        else "<p>No such suite ran.</p>"
    )


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
    own = [
        f"<p>{escape(result.suite.title.capitalize())}: an oracle that gives each request its own depth would reach "
        f"{np.mean(result.own_depth_gain):.3f} times the oracle above, which gives the batch one depth (round times of "
        f"such mixed batches are modelled, within {100 * (result.own_depth_fit_error or 0):.1f}% on uniform ones).</p>"
        for result in results.values()
        if result.own_depth_gain
    ]
    facts = {**{k: v for k, v in source.items() if k not in ("versions", "note")}, **source["versions"]}
    listed = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items())
    return (
        "<p>A share is the time that the oracle needs for the same expected tokens, in the same batches, over the time "
        "taken; both are expectations under the true process, so luck plays no part in a score. Policies see drawn "
        "acceptances and a noisy clock, one round late, and all of them see the same draws.</p>"
        f"{''.join(own)}<dl>{listed}</dl>"
    )
