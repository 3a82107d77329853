"""Just enough SVG for the report: one chart area with linear axes.

Colours are classes, so that the page's style decides them for light and dark. Coordinates are in units of the
view box, 400 wide: a chart is as wide as a phone and its text stays readable there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

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
        """Return the horizontal position of *value*, kept inside the plot."""
        share = _share(value, *self.x_range)
        return round(self.left + share * (WIDTH - self.left - self.right), 1)

    def y(self, value: float) -> float:
        """Return the vertical position of *value*, kept inside the plot."""
        share = _share(value, *self.y_range)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def x_ticks(self, ticks: Sequence[tuple[float, str]], grid: bool = False) -> None:
        """Write tick labels under the plot, with vertical lines when *grid*."""
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
        """Draw a value for each index as a staircase, one corner for each change."""
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


def _share(value: float, low: float, high: float) -> float:
    """Return where *value* is between *low* and *high*, in [0, 1]; they may be equal."""
    return min(1.0, max(0.0, (value - low) / (high - low or 1.0)))
