"""Writes a report as one HTML page without external files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sglang_adaptive.report.blocks import Block, Facts, Heading, Picture, Section, Table, Text
from sglang_adaptive.report.page_style import STYLE

_MORE_STYLE = """
dl,.scroll{margin:14px 0}
h3{margin:22px 0 8px}
thead th{white-space:normal;vertical-align:bottom}
tbody th{color:inherit;font-weight:400}
.best th,.best td{font-weight:600}
.oracle .dot{fill:var(--oracle)}.oracle .whisker{stroke:var(--oracle)}
"""


def html(title: str, sections: Sequence[Section]) -> str:
    """Return the page."""
    body = "".join(
        f"<section><h2>{escape(section.title)}</h2>{''.join(map(_block, section.blocks))}</section>"
        for section in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{_MORE_STYLE}</style></head>"
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
        case Picture(svg, caption):
            return f'<figure class="card wide">{svg}<figcaption>{escape(caption)}</figcaption></figure>'
        case Facts(facts):
            return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{_value(k, v)}</dd>' for k, v in facts.items())}</dl>"


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
