"""The cards of the HTML report: one suite's plots each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from sglang_adaptive.lab.simulate import charts
from sglang_adaptive.lab.simulate.results import SuiteResult

STARTS = ("cold-start", "stationary", "both")
"""Suites whose first rounds are drawn."""


def legend(results: Mapping[str, SuiteResult], oracle: bool = False) -> str:
    """Return the names of the series in their colours."""
    kinds = charts.series(next(iter(results.values())))
    items = [("oracle", "oracle")] if oracle else []
    items += [(kind, charts.COMPARED[kind]) for kind in kinds]
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
    kinds = charts.series(result)
    if result.sample is None or not kinds:
        return ""
    strips = "".join(
        f"<figure><figcaption>{escape(charts.COMPARED[kind])}: draft steps</figcaption>"
        f"{charts.depth_chart(result.sample, kind, contender)}</figure>"
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
        f"{charts.regret_chart(result.sample, kinds)}</figure></div>"
    )


def starts(results: Mapping[str, SuiteResult]) -> str:
    """Return a card with the start-up curve of each suite in ``STARTS`` that ran."""
    cards = "".join(
        f'<div class="card"><h3>{escape(results[name].suite.title)}</h3>{charts.start_chart(results[name])}</div>'
        for name in STARTS
        if name in results and charts.series(results[name])
    )
    note = "<p>Share of the oracle by round, mean over the traces.</p>"
    return f'{note}{legend(results)}<div class="cards">{cards}</div>' if cards else ""
