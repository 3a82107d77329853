"""Sampled acceptance of a token tree; outputs follow the target's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sample_tree_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    **_: Any,
) -> None:
    """Walk each tree from its root; accept a child as often as the target would sample it there.

    In: the tree as for `verify_tree_greedy_cpu` and numbers in [0, 1), all [bs, n], except `target_probs` [bs, n,
    vocabulary], the target's distribution after each node, and `uniform_samples_for_final_sampling` [bs]. A child is
    also accepted when its probability is `threshold_single` or more; below 1, `threshold_acc` accepts more children
    than the target would. Out: as in `verify_tree_greedy_cpu`; the last token of a path is drawn from the target's
    distribution without the rejected children.
    """
    limit = accept_index.shape[1]
    flat, drafted = retrive_index.tolist(), candidates.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    coins, last = uniform_samples.tolist(), uniform_samples_for_final_sampling.tolist()
    for row in range(len(drafted)):
        node, path, refused = 0, [0], []
        while len(path) < limit:
            taken, refused = _taken(
                target_probs[row, node], child[row][node], sibling[row], drafted[row],
                threshold_acc * coins[row][node], threshold_single,
            )  # fmt: skip
            if taken is None:
                break
            predicts[flat[row][node]] = drafted[row][taken]
            node, refused = taken, []
            path.append(node)
        predicts[flat[row][node]] = _drawn(target_probs[row, node], refused, last[row])
        accept_token_num[row] = len(path) - 1
        accept_index[row] = torch.tensor([flat[row][one] for one in path] + [-1] * (limit - len(path)))


def sample_chain_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    **_: Any,
) -> None:
    """Walk chains of sampled drafts: like `sample_tree_cpu`, but using each draft's probability.

    `draft_probs` is [bs, n - 1, vocabulary]. A draft of probability q is accepted with min(1, p / q); its replacement
    is drawn from the part of p above q (Leviathan et al., https://arxiv.org/abs/2211.17192, algorithm 1).
    """
    drafted = candidates.tolist()
    for row, place in enumerate(retrive_index.tolist()):
        taken = 0
        for draft in drafted[row][1:]:
            p, q = target_probs[row, taken, draft], draft_probs[row, taken, draft]
            if uniform_samples[row, taken] * q >= p:
                break
            predicts[place[taken]] = draft
            taken += 1
        left = target_probs[row, taken]
        if taken < draft_probs.shape[1]:
            left = (left - draft_probs[row, taken]).clamp_min(0)
        predicts[place[taken]] = _drawn(left, [], float(uniform_samples_for_final_sampling[row]))
        accept_token_num[row] = taken
        accept_index[row] = torch.tensor(place[: taken + 1] + [-1] * (accept_index.shape[1] - taken - 1))


def _taken(
    chances: Tensor, child: int, sibling: Sequence[int], drafted: Sequence[int], coin: float, single: float
) -> tuple[int | None, list[int]]:
    """Return the accepted one of *child* and its siblings, None if there is none, and the tokens of the rejected."""
    passed, refused = 0.0, []
    while child >= 0:
        chance = float(chances[drafted[child]])
        passed += chance
        if coin < passed or chance >= single:
            return child, refused
        refused.append(drafted[child])
        child = sibling[child]
    return None, refused


def _drawn(chances: Tensor, refused: Sequence[int], coin: float) -> int:
    left = chances.double()
    if refused:
        left = left.index_fill(0, torch.tensor(refused), 0.0)
    sums = left.cumsum(0)
    if sums[-1] <= 0:  # the target would sample only rejected ones, except for rounding
        sums = chances.double().cumsum(0)
    place = torch.searchsorted(sums, coin * sums[-1], right=True)
    return min(int(place), int(chances.nonzero()[-1]))


def keep_top_k_cpu(probs: Tensor, top_ks: Tensor) -> Tensor:
    """Return *probs* [rows, vocabulary] with only each row's `top_ks` [rows] largest kept, scaled to sum to 1."""
    ordered, _ = probs.sort(dim=-1, descending=True)
    least = ordered.gather(1, (top_ks.long().clamp(1, probs.shape[1]) - 1).view(-1, 1))
    return _scaled(probs.masked_fill(probs < least, 0.0))


def keep_top_p_cpu(probs: Tensor, top_ps: Tensor) -> Tensor:
    """Return *probs* [rows, vocabulary] with only the fewest largest kept that sum to `top_ps` [rows], scaled to 1."""
    ordered, places = probs.sort(dim=-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered > top_ps.view(-1, 1)
    return _scaled(probs.masked_fill(beyond.gather(1, places.argsort(-1)), 0.0))


def murmur_hash32_cpu(seed: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of each row's seed and position, and each column.

    `seed` and `positions` [rows] are hashed as 8 and 4 bytes, `columns` [vocabulary] as 4; [rows, vocabulary], int64.
    """
    hashed = torch.zeros((len(seed), 1), dtype=torch.int64)
    seed = seed.view(torch.int64).view(-1, 1)
    for word in (seed, seed >> 32, positions.long().view(-1, 1), columns.long().view(1, -1)):
        hashed = _low(
            _turned(hashed ^ _low(_turned(_low(_low(word) * 0xCC9E2D51), 15) * 0x1B873593), 13) * 5 + 0xE6546B64
        )
    hashed = hashed ^ 16  # total bytes
    hashed = _low((hashed ^ (hashed >> 16)) * 0x85EBCA6B)
    hashed = _low((hashed ^ (hashed >> 13)) * 0xC2B2AE35)
    return hashed ^ (hashed >> 16)


def _low(numbers: Tensor) -> Tensor:
    """Return the lower 32 bits, which stay correct even when a product of two such numbers overflows."""
    return numbers & 0xFFFFFFFF


def _turned(numbers: Tensor, by: int) -> Tensor:
    return _low(numbers << by) | (numbers >> (32 - by))


def _scaled(probs: Tensor) -> Tensor:
    return probs / probs.sum(-1, keepdim=True)
