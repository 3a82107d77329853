"""The attributes of SGLang that hooking itself needs."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Need

NEEDS = (
    Need(SRT + "plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type")),
    Need(SRT + "plugins.hook_registry.HookRegistry.apply_hooks"),
    Need(SRT + "plugins.hook_registry.HookRegistry._patched"),
    Need(SRT + "plugins.hook_registry.HookRegistry._hooks"),
    Need(SRT + "plugins.hook_registry._wrap_fn", ("original_fn", "hook", "hook_type")),
)
