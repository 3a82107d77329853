"""How far the draft is from the target, and how many of its drafts would be accepted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.traces.llama import Llama
from train.smollm2.lesson import Lesson, Opinions
from train.smollm2.model import Draft
from train.smollm2.plan import STEPS, Plan


@dataclass
class Score:
    """*loss* is minimized. For each step [`STEPS`]: *right* of *judged* drafts equal the target's token.

    Among *chains* whose first draft is judged, *accepted* drafts in total are right together with all drafts before
    them: what a target that writes the same text would accept.
    """

    loss: Tensor
    right: Tensor
    judged: Tensor
    chains: Tensor
    accepted: Tensor


def score(draft: Draft, target: Llama, lesson: Lesson, opinions: Opinions, plan: Plan) -> Score:
    """Unroll the *draft* along a batch and compare it with the target's *opinions*.

    A chain teaches up to its first wrong draft, because later ones are never used. Deeper steps are reached by fewer
    chains and weigh less.
    """
    zero = torch.zeros((), device=lesson.ids.device)
    loss, right, chains, accepted, alive = zero, [], zero, zero, zero
    for step, hidden in enumerate(draft.unroll(target, lesson, opinions.features, STEPS)):
        judged = lesson.judged[step]
        logits = draft.lm_head(hidden.flatten(0, 1).index_select(0, judged.at))
        best = opinions.best[judged.by]
        # A draft outside the vocabulary cannot be accepted.
        counts = (best >= 0) & alive.view(-1)[judged.at] if step else best >= 0
        loss = loss + (distance(logits, opinions, judged.by, best, plan.soft) * counts).mean() / STEPS
        with torch.no_grad():
            hits = logits.argmax(dim=-1) == best
            right.append(hits.sum())
            whole = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
            whole.view(-1).scatter_(0, judged.at, hits)
            if step == 0:
                known = torch.zeros_like(whole)
                known.view(-1).index_fill_(0, judged.at, True)
                chains, whole = known.gather(1, lesson.anchors).sum(), whole.gather(1, lesson.anchors)
            alive = whole if step == 0 else alive & whole
            accepted = accepted + alive.sum()
    judged_count = torch.tensor([float(len(one.at)) for one in lesson.judged])
    return Score(loss, torch.stack(right), judged_count, chains, accepted)


def distance(logits: Tensor, opinions: Opinions, by: Tensor, best: Tensor, soft: float) -> Tensor:
    """Return, for logits [N, V], *soft* times the divergence from the target's distribution (Kullback and Leibler's)
    and 1 - *soft* times the negative log-likelihood of its most likely token: [N], in nats.

    Meaningless where that token is not in the vocabulary.
    """
    logs = logits.float().log_softmax(dim=-1)
    crossed = -(opinions.shares[by] * logs).sum(dim=-1)
    hard = -logs.gather(1, best.clamp(min=0)[:, None])[:, 0]
    return soft * (crossed - opinions.entropy[by]) + (1 - soft) * hard
