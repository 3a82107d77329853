"""Writes a report as one HTML page without external files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text


def colour(name: str) -> str:
    """Return the color class of the page's style for a policy, by its name or label."""
    low = name.lower()
    if low.startswith(("static", "always")):
        return "static"
    if low in ("none", "oracle") or low.startswith("knows-"):
        return "oracle"
    return "ema-all" if "ema-all" in low else "ema" if "ema" in low else "throughput"


STYLE = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1c1f23;--soft:#5d646d;--rule:#dfe2e6;
--throughput:#1d5fd1;--ema:#c2410c;--ema-all:#0f7b5f;--static:#8a5fb0;--oracle:#9aa1aa}
@media(prefers-color-scheme:dark){:root{--page:#131518;--card:#1b1e22;--ink:#e7e9ec;--soft:#a2a9b2;--rule:#33383e;
--throughput:#79a9ff;--ema:#f2925a;--ema-all:#56c7a3;--static:#c3a1e6;--oracle:#727983}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.15rem;margin:36px 0 6px}
h3{font-size:1rem;margin:22px 0 8px}
p{margin:4px 0 10px;max-width:70ch}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px 14px;min-width:0}
.wide{max-width:620px}
.scroll{overflow-x:auto;margin:14px 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:var(--soft)}
thead th{white-space:normal;vertical-align:bottom}
tbody th{color:inherit;font-weight:400}
.best th,.best td{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.88rem;margin:6px 0 8px;padding:0;list-style:none}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:6px;vertical-align:middle}
svg{display:block;width:100%;height:auto}
figure{margin:8px 0 0}
figcaption{font-size:.85rem;color:var(--soft)}
.tick{font-size:10.5px;fill:var(--soft)}
.label{font-size:11px;fill:var(--ink)}
.band{fill:var(--rule);opacity:.3}
.grid{stroke:var(--rule);stroke-width:.7;fill:none}
.line{fill:none;stroke-width:1.5;stroke-linejoin:round}
.whisker{stroke-width:1.6;fill:none;opacity:.6}
.line.oracle{stroke:var(--oracle);stroke-width:4;opacity:.55}
.line.throughput,.throughput .whisker{stroke:var(--throughput)}
.line.ema,.ema .whisker{stroke:var(--ema)}
.line.ema-all,.ema-all .whisker{stroke:var(--ema-all)}
.line.static,.static .whisker{stroke:var(--static)}
.oracle .whisker{stroke:var(--oracle)}.oracle .dot{fill:var(--oracle)}
.throughput .dot{fill:var(--throughput)}.ema .dot{fill:var(--ema)}
.ema-all .dot{fill:var(--ema-all)}.static .dot{fill:var(--static)}
code{font-size:.85rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;font-size:.88rem;margin:14px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""


# Minimal SVG for the report: one chart area with linear axes.
#
# Colors are classes, so that the page's style sets them for light and dark. Coordinates are in units of the view box,
# 400 wide: a chart is as wide as a phone and its text stays readable there.


WIDTH = 400.0


@dataclass
class Chart:
    """A plot area of *height* units under construction; data coordinates in, markup out."""

    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 34.0
    right: float = 8.0
    top: float = 6.0
    bottom: float = 22.0
    label: str = ""
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        """Return the horizontal position of *value*, clamped to the plot."""
        share = _share(value, *self.x_range)
        return round(self.left + share * (WIDTH - self.left - self.right), 1)

    def y(self, value: float) -> float:
        """Return the vertical position of *value*, clamped to the plot."""
        share = _share(value, *self.y_range)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def x_ticks(self, ticks: Sequence[tuple[float, str]], grid: bool = False) -> None:
        """Write tick labels under the plot, with vertical lines if *grid*."""
        base = self.height - self.bottom
        for value, text in ticks:
            at = self.x(value)
            if grid:
                self.parts.append(f'<path class="grid" d="M{at} {self.top}V{base}"/>')
            self.text(at, base + 14, text, "middle")

    def y_ticks(self, ticks: Sequence[tuple[float, str]]) -> None:
        """Write tick labels left of the plot, with horizontal lines."""
        for value, text in ticks:
            at = self.y(value)
            self.parts.append(f'<path class="grid" d="M{self.left} {at}H{WIDTH - self.right}"/>')
            self.text(self.left - 5, at + 3.5, text, "end")

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> None:
        """Write *text* at view-box coordinates."""
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def band(self, top: float, bottom: float) -> None:
        """Shade the full width between two view-box heights."""
        self.parts.append(f'<rect class="band" x="0" y="{top}" width="{WIDTH:g}" height="{bottom - top}"/>')

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> None:
        """Draw a line through the points."""
        points = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in zip(xs, ys, strict=True))
        self.parts.append(f'<polyline class="line {kind}" points="{points}"/>')

    def steps(self, values: Sequence[float], kind: str) -> None:
        """Draw a value for each index as a staircase, with one corner per change."""
        path = [f"M{self.x(0)} {self.y(values[0])}"]
        for index in range(1, len(values)):
            if values[index] != values[index - 1]:
                path.append(f"H{self.x(index)}V{self.y(values[index])}")
        path.append(f"H{self.x(len(values))}")
        self.parts.append(f'<path class="line {kind}" d="{"".join(path)}"/>')

    def range_dot(self, low: float, high: float, at: float, kind: str, title: str) -> None:
        """Draw a horizontal whisker from *low* to a dot at *high*; *at* is a view-box height."""
        self.parts.append(
            f'<g class="{kind}"><title>{escape(title)}</title>'
            f'<path class="whisker" d="M{self.x(low)} {at}H{self.x(high)}"/>'
            f'<circle class="dot" cx="{self.x(high)}" cy="{at}" r="3.4"/></g>'
        )

    def render(self) -> str:
        """Return the finished element."""
        return (
            f'<svg viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" aria-label="{escape(self.label)}">'
            f"{''.join(self.parts)}</svg>"
        )


def dot_chart(rows: Mapping[str, Sequence[tuple[str, float, float]]], label: str, row: float) -> str:
    """Draw a row of *row* units per name: for each (policy, low, high) a dot at high, with a line down to low."""
    ranges = [each for dots in rows.values() for each in dots]
    floor = math.floor(10 * min(low for _, low, _ in ranges)) / 10
    top = max(1.0, max(high for _, _, high in ranges))
    chart = Chart(len(rows) * row + 30, (floor, top), (0, 1), left=110, label=label)
    step = 0.1 if top - floor < 0.9 else 0.2
    ticks = [floor + index * step for index in range(int((top - floor) / step + 1e-9) + 1)]
    chart.x_ticks([(tick, f"{tick:.1f}") for tick in ticks], grid=True)
    for index, (name, dots) in enumerate(rows.items()):
        start = chart.top + index * row
        if index % 2 == 0:
            chart.band(start, start + row)
        chart.text(chart.left - 8, start + row / 2 + 3, name, "end", "label")
        for place, (policy, low, high) in enumerate(dots, 1):
            at = round(start + row * place / (len(dots) + 1), 1)
            chart.range_dot(low, high, at, colour(policy), f"{name}, {policy}: {high:.3f}, down to {low:.3f}")
    return chart.render()


def _share(value: float, low: float, high: float) -> float:
    """Return the position of *value* between *low* and *high*, in [0, 1]; they may be equal."""
    return min(1.0, max(0.0, (value - low) / (high - low or 1.0)))


def html(title: str, sections: Sequence[Section]) -> str:
    """Return the page."""
    body = "".join(
        f"<section><h2>{escape(section.title)}</h2>{''.join(map(_block, section.blocks))}</section>"
        for section in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{escape(text)}</p>" if text else ""
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Table():
            return _table(block)
        case Picture(svg, caption, legend):
            return (
                f'<figure class="card wide">{_legend(legend)}{svg}<figcaption>{escape(caption)}</figcaption></figure>'
            )
        case Facts(facts):
            return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{_value(k, v)}</dd>' for k, v in facts.items())}</dl>"


def _legend(legend: Mapping[str, str]) -> str:
    items = "".join(f'<li><i style="background:var(--{kind})"></i>{escape(name)}</li>' for kind, name in legend.items())
    return f'<ul class="legend">{items}</ul>' if items else ""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = []
    for index, (name, *cells) in enumerate(table.rows):
        kind = ' class="best"' if index in table.best else ""
        figures = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr{kind}><th scope="row">{escape(name)}</th>{figures}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _value(name: str, value: str) -> str:
    return f"<code>{escape(value)}</code>" if name == "command" else escape(value)
