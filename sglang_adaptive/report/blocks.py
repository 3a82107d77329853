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
    """Rows of text; the first column names the row, the others are figures. *best* marks rows to stand out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG element of a chart whose figures a table carries as well; only HTML shows it."""

    svg: str
    caption: str
    legend: Mapping[str, str] = field(default_factory=dict)
    """Names by colour class, where the chart does not name what it draws."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Where the figures come from, name by name."""

    facts: Mapping[str, str]


Block = Text | Heading | Table | Picture | Facts


@dataclass(frozen=True, slots=True)
class Section:
    """A title and what is under it."""

    title: str
    blocks: Sequence[Block]
