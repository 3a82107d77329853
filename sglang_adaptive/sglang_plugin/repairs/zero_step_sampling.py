"""Makes zero steps work with ``--speculative-use-rejection-sampling``.

Rejection sampling compares the target's distribution with the one that the drafts were drawn from. At zero steps the
verify input of SGLang 0.5.23 has no such distribution, and ``eagle_sample`` raises: the first sampled batch at zero
steps ends the scheduler.
"""

from __future__ import annotations

from typing import Any


def with_draft_probs(verify_input: Any, worker: Any, batch: Any) -> Any:
    """Return the *verify_input* of a zero-step round, with an empty draft distribution where one is needed.

    Its shape is (requests, 1, vocabulary): zeros, expanded from one element. The sampler's kernel reads one row a
    draft; without drafts it reads none and samples from the target's distribution.
    """
    import torch
    from sglang.srt.runtime_context import get_spec

    if (
        get_spec().speculative_use_rejection_sampling
        and not batch.forward_mode.is_idle()
        and verify_input.draft_probs is None
    ):
        requests, vocabulary = batch.seq_lens.shape[0], worker.target_worker.model_config.vocab_size
        none = torch.zeros((1, 1, 1), dtype=torch.float32, device=worker.device)
        verify_input.draft_probs = none.expand(requests, 1, vocabulary)
    return verify_input
