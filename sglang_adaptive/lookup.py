"""A lookup: drafts copied from an earlier place in a request's own text, its prompt and output, or from other texts.

This is the definition, which kernels and recordings follow.

Token p is the last known token. The lookup finds the earlier token q for which the tokens up to q match those up to p
the furthest back, over at least SHORTEST tokens and compared over LONGEST; of several such q, it takes the latest. The
drafts are the DRAFTS tokens after q. If they reach p, they start again after q, as in text with a period of p - q
tokens. So a round accepts as many drafts as the texts after q and after p have in common, at most DRAFTS, and yields
one more token.

Other texts may be searched as well, its sources. There q may be any token but the last; of equal matches the own text
counts, then the first source. Drafts end with their source.
"""

from __future__ import annotations

import json
from pathlib import Path

from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.options import PolicyOptions

SHORTEST, LONGEST = 2, 64
"""Tokens that must match, and the most that are compared."""
DRAFTS = 32
"""Drafts per round."""


def texts_in(path: str) -> list[str | list[int]]:
    """Return the texts of a file, one a line: a JSON string, or a JSON list of token ids.

    Raises:
        ConfigError: With one line that names file, line and what is accepted.
    """
    expected, found = "a JSON string or list of token ids a line", list[str | list[int]]()
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(path, None, str(error), f"a file with {expected}") from None
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)
        except ValueError:
            text = None
        tokens = isinstance(text, list) and all(type(token) is int and token >= 0 for token in text)
        if not (text and (tokens or isinstance(text, str))):
            raise ConfigError(path, f"line {number}", f"got {shown(line)}", expected)
        found.append(text)
    return found


def require_texts(options: PolicyOptions, *, as_text: bool = True) -> None:
    """Raise ConfigError unless the texts of ``lookup_texts`` take at most half of the memory.

    Without *as_text* they must be tokens.
    """
    path, megabytes = options.lookup_texts, options.lookup_memory_mb
    if not (options.lookup and path):
        return
    texts, most = texts_in(path), megabytes << 17  # half of the tokens, which are 4 bytes each
    if not as_text and any(isinstance(text, str) for text in texts):
        raise ConfigError(path, None, "has text", "lists of token ids beside --skip-tokenizer-init")
    size = len(texts) + sum(len(text.encode()) if isinstance(text, str) else len(text) for text in texts)
    if size > most:
        expected = f"{most:,} at most with a lookup_memory_mb of {megabytes}"
        raise ConfigError(path, None, f"has {size:,} bytes of text or tokens", expected)
