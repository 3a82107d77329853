"""The parts of a report, for all output formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a part of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column names the row, the others are figures. *best* marks rows to highlight."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG element of a chart whose figures are also in a table; only HTML shows it."""

    svg: str
    caption: str
    legend: Mapping[str, str] = field(default_factory=dict)
    """Names by color class, for charts without their own labels."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The sources of the figures, by name."""

    facts: Mapping[str, str]


Block = Text | Heading | Table | Picture | Facts


@dataclass(frozen=True, slots=True)
class Section:
    """A title and its content."""

    title: str
    blocks: Sequence[Block]
