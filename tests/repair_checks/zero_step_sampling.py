"""Zero steps with rejection sampling.

The sampling kernel is SGLang's own; TRITON_INTERPRET=1 lets Triton run it on a CPU.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.repair_checks.parts import adaptive_worker, published

VOCABULARY, PROMPT = 50, 7


def a_sampled_batch_may_run_at_zero_steps() -> None:
    """One token per request from the target's distribution, by SGLang's verify and the real sampling kernel."""
    import torch

    wanted = [3, 41, 17]
    logits = torch.full((len(wanted), VOCABULARY), -30.0)
    logits[torch.arange(len(wanted)), wanted] = 30.0
    predict, accept_lens, accept_index = sampled(logits)
    assert predict.tolist() == wanted, predict
    assert accept_lens.tolist() == [1, 1, 1], accept_lens
    assert accept_index.tolist() == [[0], [1], [2]], accept_index


def sampled(logits: Any) -> Any:
    """Return the output of eagle_sample for *logits*, (requests, vocabulary), after a round without drafts."""
    import sgl_kernel
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.speculative import eagle_utils

    def softmax(logits: Any, temperatures: Any) -> Any:  # SGLang's kernel has no CPU form
        return torch.softmax(logits / temperatures, dim=-1)

    requests = logits.shape[0]
    batch = SimpleNamespace(
        device="cpu",
        forward_mode=ForwardMode.TARGET_VERIFY,
        seq_lens=torch.full((requests,), PROMPT),
        seq_lens_sum=requests * PROMPT,
        seq_lens_cpu=None,
        spec_info=SimpleNamespace(bonus_tokens=torch.zeros(requests, dtype=torch.int64)),
        sampling_info=sampling_info(requests),
        return_logprob=False,
    )
    with ExitStack() as stack:
        stack.enter_context(published(device="cpu", speculative_use_rejection_sampling=True))
        stack.enter_context(get_parallel().override(tp_group=SimpleNamespace(world_size=1)))
        worker = adaptive_worker(launch_steps=3)
        worker.topk, worker.device = 1, "cpu"
        worker._target_worker.model_runner.attn_backend = SimpleNamespace(verify_mask=None)
        worker._target_worker.model_config = SimpleNamespace(vocab_size=VOCABULARY)
        verify_input = worker._build_trivial_verify_input(batch)
        stack.enter_context(mock.patch.multiple(eagle_utils, _is_cpu=False, sampling_softmax=softmax))
        # SGLang 0.5.22 imports them even if no request needs them.
        unused = dict.fromkeys(("top_k_renorm_prob", "top_p_renorm_prob"))
        stack.enter_context(mock.patch.dict(vars(sgl_kernel), unused))
        return eagle_utils.eagle_sample(verify_input, batch, SimpleNamespace(next_token_logits=logits.clone()))


def sampling_info(requests: int) -> Any:
    """Return sampling info with temperature 1 for every request and nothing that modifies the logits."""
    import torch

    absent = ("acc_additive_penalties", "acc_scaling_penalties", "logit_bias", "sampling_seed")
    no = ("is_all_greedy", "need_top_k_sampling", "need_top_p_sampling", "has_watermark_candidates")
    return SimpleNamespace(temperatures=torch.ones(requests, 1), **dict.fromkeys(absent), **dict.fromkeys(no, False))
