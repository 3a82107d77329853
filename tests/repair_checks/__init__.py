"""Repairs of SGLang that the plugin and the patches both make, checked on SGLang's own objects.

There are no models, KV pools or sockets; all code that decides, counts or reports is real.
"""

from __future__ import annotations

PATCHED = tuple(
    f"repair_checks/{name}"
    for name in (
        *("feedback", "first_end", "mamba_width", "mixed_grammar", "override_log", "reserves", "tiers"),
        "zero_step_sampling",
    )
)
"""Modules of `tests.checks` with checks of repairs that both make."""
