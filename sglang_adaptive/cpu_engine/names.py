"""Names that the launcher, the plugin and the tests have to agree on."""

from __future__ import annotations

ATTENTION_BACKEND = "torch_ref"
SWITCH = "SGLANG_ADAPTIVE_CPU_ENGINE"
"""Environment variable; "1" lets the plugin act."""
