"""What a launch line loses to its attention backend where its GPU runs one whose drafted rounds take less."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin.launch.without_device import configuration

WORTH = {
    "flashinfer": "a round of 3 steps took 10.3 ms with it and 7.6 with fa3, and a plain decode 6.3 and 6.4 (8B shape, "
    "batch 1, one H100)",
    "triton": "with it SGLang prepares each round on the host, which is left out with fa3 (not measured)",
}
"""By the backends that SGLang takes before Hopper; from backends/flashinfer.json and lookups/edits-llama8b.json among
the results of the benchmarks."""


def hint(server_args: Any, backend: str | None) -> str | None:
    """Return what to take instead of *backend*, and why; None where nothing here is known to be faster."""
    import torch

    algorithm = (server_args.speculative_algorithm or "").upper()
    if backend not in WORTH or algorithm not in ("EAGLE", "EAGLE3", "NEXTN") or not torch.cuda.is_available():
        return None
    # SGLang has fa3 for the GPUs of these generations, and with latent attention (MLA) for Hopper alone.
    generations = (9,) if configuration(server_args.model_path).get("kv_lora_rank") else (8, 9)
    if torch.cuda.get_device_capability()[0] not in generations:
        return None
    return f"{WORTH[backend]}: try --attention-backend fa3, which this GPU runs"
