"""Is it worth to draft deep and verify only what the draft believes in? From traces and measured round times."""
