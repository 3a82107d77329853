"""Whether a batch is plainly greedy, and the acceptance of drafts that match the target's tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_plainly_greedy(batch: Any, grammar_mask: Any, watermark_state: Any) -> bool:
    """Whether each token of *batch* is simply the likeliest one of its row of logits."""
    from sglang.srt.environ import envs

    info = batch.sampling_info
    between = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias, grammar_mask, watermark_state)
    return bool(
        info.is_all_greedy
        and not info.has_custom_logit_processor
        and all(part is None for part in between)
        and not envs.SGLANG_SANITIZE_NAN_LOGITS.get()
    )


def accept(verify_input: Any, chosen: Tensor, first_children: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what SGLang's eagle_sample returns if the target chose *chosen* [requests * width], int64.

    These are the token after each node, int32 [requests * width]; the number of accepted tokens of each request, its
    drafts plus one, int32 [requests]; and their nodes, padded with -1, int32 [requests, depth]. Drafts without a link
    are not accepted, whatever *chosen* has at the nodes before them. *first_children* [requests, width] replace the
    links of *verify_input*.
    """
    from sglang.srt.speculative import eagle_utils, spec_utils

    candidates = verify_input.draft_token.view(verify_input.retrieve_next_token.shape)
    requests, width = candidates.shape
    depth, device = verify_input.max_tree_depth, candidates.device
    target = chosen.view(requests, width)
    predict, index, accepted = eagle_utils.verify_tree_greedy_func(
        predicts=torch.zeros(requests * width, dtype=torch.int32, device=device),
        accept_index=torch.full((requests, depth), -1, dtype=torch.int32, device=device),
        accept_token_num=torch.empty(requests, dtype=torch.int32, device=device),
        candidates=candidates,
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token if first_children is None else first_children,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=target,
        topk=verify_input.tree_topk,
    )
    if spec_utils.SIMULATE_ACC_LEN > 0:  # where benchmarks replay acceptance, as in eagle_sample
        index = spec_utils.generate_simulated_accept_index(
            accept_index=index, predict=predict, num_correct_drafts=accepted, candidates=candidates,
            target_predict=target, simulate_acc_len=spec_utils.SIMULATE_ACC_LEN,
            simulate_acc_token_mode=spec_utils.SIMULATE_ACC_TOKEN_MODE, bs=requests, spec_steps=depth - 1,
        )  # fmt: skip
    return predict, accepted + 1, index
