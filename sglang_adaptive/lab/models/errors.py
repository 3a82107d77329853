"""What keeps a model from the cache."""

from __future__ import annotations


class ModelError(RuntimeError):
    """A model cannot be had; the message is one line that says what to do."""
