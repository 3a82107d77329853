"""The report as one HTML page that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sglang_adaptive.lab.simulate import charts
from sglang_adaptive.lab.simulate.page_cards import legend, samples, starts
from sglang_adaptive.lab.simulate.report_text import figure, own_depth_notes
from sglang_adaptive.lab.simulate.results import SuiteResult
from sglang_adaptive.lab.simulate.targets import Outcome
from sglang_adaptive.report.html import STYLE

Results = Mapping[str, SuiteResult]
TITLE = "Speculative depth: simulated policies against an oracle"


def html_report(results: Results, judged: Sequence[Outcome], source: Mapping[str, Any]) -> str:
    """Return the page."""
    sections = {
        "Throughput against the oracle": _shares(results) if charts.series(next(iter(results.values()))) else "",
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
        f'<div class="card wide">{legend(results)}{charts.shares_chart(results)}'
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
