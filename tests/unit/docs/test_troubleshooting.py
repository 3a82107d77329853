"""Every message that the package can print has an entry in docs/troubleshooting.md, and no entry is stale."""

from __future__ import annotations

import ast
import re

from tests.messages import GAP, LEAST_LETTERS, PACKAGE, documented, messages, pattern


def test_every_message_has_an_entry_and_every_entry_a_message() -> None:
    patterns = {entry: pattern(entry) for entry, _ in documented()}
    # The page marks code with back quotes, which a message may contain itself.
    texts = {re.sub(r"`[^`]*`", GAP, text): where for text, where in messages().items()}
    missing = [f"{at}: {text}" for text, at in texts.items() if not any(p.search(text) for p in patterns.values())]
    assert not missing, "add rows to docs/troubleshooting.md"
    stale = [entry for entry, found in patterns.items() if not any(map(found.search, texts))]
    assert not stale, "no message reads so: change or delete these rows of docs/troubleshooting.md"
    frames = [entry for entry in patterns if sum(character.isalpha() for character in entry) < LEAST_LETTERS]
    assert not frames, "these rows would match anything"


def test_no_log_line_escapes_the_search() -> None:
    """The search recognizes loggers by the name ``logger``; the package may not use another name."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and "getLogger(__name__)" in ast.unparse(node.value):
                assert ast.unparse(node.targets[0]) == "logger", f"{path}: call it logger"
