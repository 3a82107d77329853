"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text


def markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the page without charts; their figures are in the tables."""
    parts = [f"# {title}"]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [text for block in section.blocks if (text := _block(block))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return text
        case Heading(text):
            return f"### {text}"
        case Table():
            return "\n".join(_table(block))
        case Facts(facts):
            return "\n".join(f"- {name}: {_plain(name, value)}" for name, value in facts.items())
        case Picture():
            return ""


def _table(table: Table) -> Iterator[str]:
    yield _row(table.head)
    yield _row(["---", *("---:" for _ in table.head[1:])])
    for index, row in enumerate(table.rows):
        yield _row([f"**{cell}**" if cell else "" for cell in row] if index in table.best else row)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(name: str, value: str) -> str:
    return f"`{value}`" if name == "command" else value
