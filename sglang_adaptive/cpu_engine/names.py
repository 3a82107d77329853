"""Names that the launcher, the plugin and the tests share."""

from __future__ import annotations

ATTENTION_BACKEND = "torch_ref"

PLUGIN = "sglang_adaptive_cpu_engine"
"""Name of the entry point in the group `sglang.srt.plugins`."""

SWITCH = "SGLANG_ADAPTIVE_CPU_ENGINE"
"""Environment variable; "1" activates the plugin."""
