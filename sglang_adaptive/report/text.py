"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text


def text(sections: Sequence[Section]) -> str:
    """Return the sections with aligned tables.

    Charts are left out because their figures are in the tables. Sources are left out because the reader has just run
    the command.
    """
    blocks = (block for section in sections for block in (Heading(section.title), *section.blocks))
    return "\n\n".join(filter(None, map(_block, blocks)))


def _block(block: Block) -> str:
    match block:
        case Text(words) | Heading(words):
            return words
        case Table():
            return _table(block)
        case Picture() | Facts():
            return ""


def _table(table: Table) -> str:
    lines = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip() for name, *cells in lines
    )
