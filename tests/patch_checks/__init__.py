"""The repairs of the patches, checked on SGLang's own objects.

``TRITON_INTERPRET=1 python -m tests.patch_checks`` prints one JSON object, ``{"name of the check": null if it passes,
else the reason}``; run it with stock SGLang and with a patched copy first on PYTHONPATH. There are no models, KV pools
or sockets; all code that decides, counts or reports is real.
"""

from __future__ import annotations

from tests.patch_checks import (  # noqa: F401  (their checks register themselves)
    config_alone,
    config_file,
    extend_metadata,
    feedback,
    first_end,
    frozen_heap,
    graph_sizes,
    mamba_reserve,
    mamba_width,
    mixed_grammar,
    ngram_prompts,
    on_cpu,
    override_log,
    penalty_order,
    plan_stream,
    proposed_drafts,
    seeded_noise,
    server_info,
    swa_reserve,
    target_backends,
    target_scope,
    zero_step_sampling,
)
from tests.patch_checks.registry import KEPT, REPAIRED

__all__ = ["KEPT", "REPAIRED"]
