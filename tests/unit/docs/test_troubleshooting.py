"""Every message that the package can print has an entry in docs/troubleshooting.md, and no entry is stale."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.messages import GAP, LEAST_LETTERS, Message, messages

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"


def entries() -> list[str]:
    shown, columns = [], 0
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            columns = 0
        elif cells[0] == "Message":
            columns = cells.count("Message")
        else:
            shown += [entry for cell in cells[:columns] for entry in re.findall(r"`([^`]+)`", cell)]
    return shown


def pattern(entry: str) -> re.Pattern[str]:
    """Return a pattern that matches the entry in a message; a gap in one may be text in the other."""
    return re.compile(".*".join(re.escape(part.strip()) for part in entry.split(GAP)), re.S)


def plain(message: Message) -> str:
    # The page marks code with back quotes, which a message may contain itself.
    return re.sub(r"`[^`]*`", GAP, message.text)


def test_enough_is_found() -> None:
    where = {message.where.partition(":")[0] for message in messages()}
    expected = {
        "policy/config.py",
        "sglang_plugin/launch/activation.py",
        "runtime/controller.py",
        "lab/demo/results.py",
    }
    assert expected <= where
    assert len(messages()) > 200


def test_every_message_has_an_entry_and_every_entry_a_message() -> None:
    patterns = {entry: pattern(entry) for entry in entries()}
    texts = {plain(message): message for message in messages()}
    missing = [str(message) for text, message in texts.items() if not any(p.search(text) for p in patterns.values())]
    assert not missing, "add rows to docs/troubleshooting.md"
    stale = [entry for entry, found in patterns.items() if not any(map(found.search, texts))]
    assert not stale, "no message reads so: change or delete these rows of docs/troubleshooting.md"
    frames = [entry for entry in patterns if sum(character.isalpha() for character in entry) < LEAST_LETTERS]
    assert not frames, "these rows would match anything"


def test_no_log_line_escapes_the_search() -> None:
    """The search recognizes loggers by the name ``logger``; the package may not use another name."""
    package = Path(__file__).parents[3] / "sglang_adaptive"
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and "getLogger(__name__)" in ast.unparse(node.value):
                assert ast.unparse(node.targets[0]) == "logger", f"{path}: call it logger"
