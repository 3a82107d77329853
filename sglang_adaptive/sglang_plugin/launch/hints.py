"""What ``doctor`` says of a launch line beside whether it adapts: what it lacks, and what it could gain."""

from __future__ import annotations

import os
from typing import Any

from sglang_adaptive.policy.config import load_config
from sglang_adaptive.sglang_plugin.model_config import model_config
from sglang_adaptive.sglang_plugin.workers.arguments import plans_widths


def planner(server_args: Any) -> dict[str, str | None] | None:
    """Return ``mode``, ``table`` (its file) and ``problem`` (why SGLang cannot use it); None for other servers.

    SGLang ignores a table with one entry. A prefill server drafts nothing, so it gets None.
    """
    from sglang.srt.speculative.dspark_components.dspark_sps import is_uninitialized_sps_table, load_sps_table_from_path

    if not plans_widths(server_args) or server_args.disaggregation_mode == "prefill":
        return None
    table, problem = server_args.speculative_dspark_sps_table_path, None
    if table is not None:
        try:
            if is_uninitialized_sps_table(load_sps_table_from_path(table)):
                problem = "one number of tokens alone, which SGLang takes as no table"
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            problem = f"SGLang cannot read it ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return {"mode": os.environ.get("SGLANG_RAGGED_VERIFY_MODE", "static"), "table": table, "problem": problem}


WORTH_OF_A_WINDOW = "SmolLM2's draft, trained on 2048 tokens, brings 6% to 20% more tokens a round at 3000 with it"


def long_contexts(server_args: Any) -> str | None:
    """Return what to set for long requests; None where nothing is lost, or nothing is known of the models here."""
    draft = model_config(server_args.speculative_draft_model_path)
    target = model_config(server_args.model_path)
    config = server_args.speculative_adaptive_config
    asked = None if config is None else load_config(config)
    if not draft or (server_args.speculative_algorithm or "").upper() not in ("EAGLE", "EAGLE3"):
        return None
    trained = (asked and asked.draft_trained_on) or draft.get("max_position_embeddings")
    context = server_args.context_length or target.get("max_position_embeddings")
    if trained is None or context is None or context <= trained or (asked and asked.draft_window is not None):
        return None
    lost = f"requests may have {context} tokens, and the draft was trained on {trained}"
    if "kv_lora_rank" in draft or draft.get("sliding_window"):
        return f"{lost}: beyond that fewer of its drafts are right, and a draft of this kind cannot have a draft_window"
    return f'{lost}: set "draft_window": "auto" in the configuration; {WORTH_OF_A_WINDOW} (docs/configuration.md)'


WORTH_OF_FA3 = {
    "flashinfer": "a round of 3 steps took 6.0 to 6.6 ms with it and 5.6 with fa3 at batch 1, and 9.7 and 9.1 at 64 "
    "(8B shape, one H200)",
    "triton": "a round of 3 steps took 5.8 to 7.2 ms with it and 5.6 with fa3 at batch 1, and 9.3 and 9.1 at 64 (8B "
    "shape, one H200)",
}
"""By the backends that SGLang takes before Hopper; from backends/ among the results of the benchmarks."""


def faster_backend(server_args: Any, backend: str | None) -> str | None:
    """Return what to take instead of *backend*, and why; None where nothing here is known to be faster."""
    import torch

    algorithm = (server_args.speculative_algorithm or "").upper()
    if backend not in WORTH_OF_FA3 or algorithm not in ("EAGLE", "EAGLE3", "NEXTN") or not torch.cuda.is_available():
        return None
    # SGLang has fa3 for the GPUs of these generations, and with latent attention (MLA) for Hopper alone.
    generations = (9,) if model_config(server_args.model_path).get("kv_lora_rank") else (8, 9)
    if torch.cuda.get_device_capability()[0] not in generations:
        return None
    return f"{WORTH_OF_FA3[backend]}: try --attention-backend fa3, which this GPU runs"
