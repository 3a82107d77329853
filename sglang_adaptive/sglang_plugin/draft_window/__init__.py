"""The draft attends to a long request's first tokens and its latest ones; off by default (docs/architecture.md)."""
