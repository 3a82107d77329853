"""Draws the token after every row of a verify with SGLang's sampler, and accepts the drafts that match.

SGLang 0.5.23 accepts a draft d with probability p(d), and otherwise draws from the rest. Drawing from p and accepting d
if it was drawn has the same distribution. But then each token is the sampler's own, drawn after its true text: sampling
parameters mean the same as without speculation, and a seeded token depends only on its position.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin import features, ranks
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.setup import Setup
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.exact import penalties, rows
from sglang_adaptive.sglang_plugin.stages.fast_path import greedy

logger = logging.getLogger(__name__)


class ExactVerify(Stage):
    """Verifies one worker's rounds whose tokens are not plainly greedy."""

    def __init__(self, worker: Any) -> None:
        """*worker* is SGLang's speculative worker."""
        # Ranks that verify differently would accept different numbers of drafts.
        self.guard = Guard("exact")
        self._worker = worker
        self._text = penalties.HostText()
        self._sums = penalties.Sums()
        self._prepared = False
        """Whether a batch with penalties has been prepared for a round and not been verified."""
        self._behind = False
        """Whether SGLang's penalizers lack tokens."""
        self._zero: Tensor | None = None
        self._by_row: tuple[tuple[Any, ...], Any] = (None, None, None), None
        """What the latest sampling parameters with a row per token were made of, and these parameters."""
        self._named: set[str] = set()

    @classmethod
    def where_it_can(cls, worker: Any) -> list[Stage]:
        """Return a stage that verifies *worker*'s rounds; none where the configuration or launch rules it out."""
        return [cls(worker)] if configuration().exact and features.may("exact", Setup(worker)) else []

    # -- before a round -------------------------------------------------------------------------------------------

    def count_penalties(self, rest: Rest, batch: Any) -> None:
        """Prepare a round of *batch*, which needs no penalties of SGLang's, as these count one token per round."""
        if self.guard.attempt(self._prepare, batch) is not None:
            return
        if self._behind:
            self._behind = False
            with suppress(Exception):
                self._text.count(batch)
                return
        rest(batch)

    def _prepare(self, batch: Any) -> bool:
        from sglang.srt.runtime_context import get_schedule

        if self._prepared:  # for a mixed prefill, which has added a token to each text
            self._sums.forget()
        self._prepared = True
        info = batch.sampling_info
        if info.has_watermark_candidates or get_schedule().enable_mixed_chunk:
            self._text.count(batch)
        else:
            self._behind = True
            if self._zero is None:
                self._zero = torch.zeros((), device=batch.device)
            # SGLang adds them if an error leaves the round to it.
            setattr(batch, NOTE, self._zero.expand(len(batch.reqs), info.vocab_size))
        return True

    def prepare_prefill(self, rest: Rest, batch: Any) -> None:
        """Prepare a prefill, and let its penalizers count the earlier output of retracted requests."""
        rest(batch)
        if batch.sampling_info.penalizer_orchestrator.is_required and any(req.output_ids for req in batch.reqs):
            self._sums.forget(batch.reqs)
            self.guard.attempt(self._text.count_again, batch)

    def is_overlap_off(self, rest: Rest, scheduler: Any, batch: Any, last_batch: Any) -> bool:
        """Return whether pending results have to be processed before *batch*, as where a processor reads their text."""
        return rest(scheduler, batch, last_batch) or bool(
            batch
            and not self.guard.closed
            and scheduler.result_queue
            and batch.forward_mode.is_decode()
            and batch.sampling_info is not None
            and batch.sampling_info.has_custom_logit_processor
            and rows.first_rows_alone(batch.sampling_info)
        )

    # -- a round --------------------------------------------------------------------------------------------------

    def sample(
        self, rest: Rest, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Accept the drafts that SGLang's sampler draws, and choose the token after them."""
        found = self.accepted(verify_input, batch, logits_output, grammar_mask, options.get("watermark_state"))
        if found is None:
            found = rest(verify_input, batch, logits_output, grammar_mask, *more, **options)
            if batch.sampling_info.acc_additive_penalties is not None and not batch.forward_mode.is_idle():
                self.guard.attempt(self._count, batch, verify_input, found[2])
        return found

    def _count(self, batch: Any, verify_input: Any, index: Tensor) -> None:
        self._prepared = False
        self._sums.count(batch, verify_input, index)

    def accepted(
        self, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any, watermark_state: Any
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return what SGLang's eagle_sample returns; None for a round that it has to verify."""
        info = batch.sampling_info
        if batch.forward_mode.is_idle() or (
            info.is_all_greedy and info.acc_additive_penalties is None and not info.has_custom_logit_processor
        ):
            return None
        if watermark_state is not None and info.has_watermark_candidates:
            return None
        return self.guard.attempt(self._accepted, verify_input, batch, logits_output, grammar_mask)

    def _accepted(
        self, verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        info, logits = batch.sampling_info, logits_output.next_token_logits
        width, cut = verify_input.draft_token_num, None
        if info.has_custom_logit_processor:
            cut = rows.without_drafts(info, verify_input.retrieve_next_token)
            self._name(rows.first_rows_alone(info))
        penalised = info.acc_additive_penalties is not None
        if penalised:
            self._sums.apply(batch, verify_input, logits)
        if grammar_mask is not None:
            grammar_mask.apply(logits)
        if info.logit_bias is not None:
            logits.unflatten(0, (-1, width)).add_(info.logit_bias[:, None])
        untouched = grammar_mask is None and info.logit_bias is None and greedy.takes_likeliest(info)
        if untouched and verify_input.tree_topk == 1 and greedy.fits(verify_input, batch, logits):
            if width == 1:
                found = greedy.choose(logits)
            else:
                found = greedy.commit(logits, verify_input.draft_token, batch.seq_lens, width)[:3]
        else:
            # SGLang makes new tensors when requests join or leave, and a new `info` in each round.
            of = (info.temperatures, info.custom_params, width)
            if not all(map(operator.is_, self._by_row[0], of)):
                self._by_row = of, rows.repeated(info, width)
            drawn = self._draw(logits_output, self._by_row[1], batch, verify_input.positions)
            found = accept(verify_input, drawn, cut)
        if penalised:
            self._count(batch, verify_input, found[2])
        return found

    def _draw(self, logits_output: Any, each: Any, batch: Any, positions: Tensor) -> Tensor:
        """Return the token that SGLang's sampler draws after each row, int64 [rows]."""
        sampler = self._worker.target_worker.model_runner.sampler
        drawn_from = logits_output.next_token_logits
        if batch.return_logprob and not each.is_all_greedy:
            # The sampler turns logits into probabilities in place, and logprobs are read from logits later.
            sampler._preprocess_logits(drawn_from, each)
            drawn_from = drawn_from.clone()
            each = dataclasses.replace(each, has_custom_logit_processor=False)
        output = dataclasses.replace(logits_output, next_token_logits=drawn_from)
        drawn = sampler(output, each, False, [], [], positions).to(torch.int64)
        if not each.is_all_greedy and (group := ranks.of_the_batch()).world_size > 1:
            group.broadcast(drawn, src=0)  # as in eagle_sample, because logits may differ in the last digit
        return drawn

    def _name(self, processors: list[str]) -> None:
        for name in set(processors) - self._named:
            self._named.add(name)
            logger.info(
                "adaptive: requests with %s get one token per round, because it reads the text of its request", name
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
