"""Applies penalties and minimum lengths to each row of a verify, by the text before it.

SGLang 0.5.23 gives its penalizers one token per round, the last that the host knows, and applies the first row's
penalties to all rows of a verify. Here they get all tokens that the host knows. Later tokens are on the device: those
of a round whose result is still pending (with overlap scheduling), and the root and drafts of this one. Each row adds
its part, so nothing waits for the host.

Sums are made token by token, like the penalizers', so a row's penalties match a server without speculation bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Counted:
    """Tensors of a batch's penalizers after counting what the host knows. Nothing writes to them later."""

    first: Tensor
    """int64 [requests]: the position of each request's first uncounted token."""
    outputs: Tensor
    """int64 [requests]: counted output tokens."""
    frequency: tuple[Tensor, Tensor] | None
    """Sums [requests, vocabulary] and the penalty of one token [requests, 1]; None where no request has one."""
    presence: tuple[Tensor, Tensor] | None
    repetition: tuple[Tensor, Tensor] | None
    minimum: tuple[Tensor, Tensor] | None
    """Minimum output tokens, int32 [requests, 1], and -inf for tokens that stop, [requests, vocabulary]."""

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        parts = (self.frequency, self.presence, self.repetition, self.minimum)
        return [self.first, self.outputs, *(tensor for part in parts if part is not None for tensor in part)]


class HostText:
    """Lets SGLang's penalizers count every output token that the host knows, once each."""

    def __init__(self) -> None:
        self._counted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """By request: the output tokens that its penalizers have counted."""

    def count_again(self, batch: Any) -> Counted:
        """Count all output tokens of *batch*, a prefill, which has new penalizers.

        A request has output there after a retraction; each chunk of its prefill has new penalizers.
        """
        for req in batch.reqs:
            self._counted.pop(req, None)
        return self.count(batch)

    def count(self, batch: Any) -> Counted:
        """Count *batch*'s new output tokens, in new tensors because a running round may read the old ones."""
        orchestrator = batch.sampling_info.penalizer_orchestrator
        rows: list[int] = []
        tokens: list[int] = []
        for row, req in enumerate(batch.reqs):
            new = req.output_ids[self._counted.get(req, 0) :]
            rows += [row] * len(new)
            tokens += new
            self._counted[req] = len(req.output_ids)
        outputs = [len(req.output_ids) for req in batch.reqs]
        first = [len(req.origin_input_ids) + known for req, known in zip(batch.reqs, outputs, strict=True)]
        numbers = _on_device([*first, *outputs, *rows, *tokens], orchestrator.device)
        sizes = [len(first), len(outputs), len(rows), len(tokens)]
        return _counted(orchestrator, *numbers.split(sizes))


def _on_device(numbers: list[int], device: Any) -> Tensor:
    from sglang.srt.utils.common import is_pin_memory_available

    pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=is_pin_memory_available(device))
    return pinned.to(device, non_blocking=True)


def _counted(orchestrator: Any, first: Tensor, outputs: Tensor, rows: Tensor, tokens: Tensor) -> Counted:
    from sglang.srt.sampling import penaltylib

    def summed(kind: Any, sums: str, each: str, add: str) -> tuple[Tensor, Tensor] | None:
        penalizer = orchestrator.penalizers.get(kind)
        if penalizer is None or not penalizer.is_prepared():
            return None
        old, one = getattr(penalizer, sums), getattr(penalizer, each)
        if len(rows):
            new = old.clone()
            getattr(new.view(-1), add)(0, rows * new.shape[1] + tokens, one.view(-1)[rows])
            setattr(penalizer, sums, new)
        return getattr(penalizer, sums), one

    shortest = orchestrator.penalizers.get(penaltylib.BatchedMinNewTokensPenalizer)
    minimum = None
    if shortest is not None and shortest.is_prepared():
        shortest.len_output_tokens = outputs.to(torch.int32).unsqueeze(1)
        minimum = shortest.min_new_tokens, shortest.stop_token_penalties
    return Counted(
        first, outputs,
        frequency=summed(
            penaltylib.BatchedFrequencyPenalizer,
            "cumulated_frequency_penalties", "frequency_penalties", "scatter_add_",
        ),
        presence=summed(
            penaltylib.BatchedPresencePenalizer, "cumulated_presence_penalties", "presence_penalties", "scatter_"
        ),
        repetition=summed(
            penaltylib.BatchedRepetitionPenalizer,
            "cumulated_repetition_penalties", "repetition_penalties", "scatter_",
        ),
        minimum=minimum,
    )  # fmt: skip


class LatestTokens:
    """The tokens that each request's latest verify accepted, on the device, by position in the text."""

    def __init__(self, slots: int, longest: int, device: Any) -> None:
        """*slots* is the number of SGLang's request slots, *longest* the most tokens of a request in one verify."""
        self._tokens = torch.zeros((slots, longest), dtype=torch.int64, device=device)

    def write(self, slots: Tensor, start: Tensor, tokens: Tensor) -> None:
        """Keep *tokens* [requests, n] of positions from *start* [requests] on; those past the text may be wrong."""
        longest = self._tokens.shape[1]
        places = (start[:, None] + torch.arange(tokens.shape[1], device=start.device)) % longest
        self._tokens[slots.long()[:, None], places] = tokens.long()

    def read(self, slots: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of positions from *start* [requests] on, and the positions, [requests, longest] each."""
        places = start[:, None] + torch.arange(self._tokens.shape[1], device=start.device)
        return self._tokens[slots.long()[:, None], places % self._tokens.shape[1]], places


def paths(verify_input: Any) -> Tensor:
    """Return bool [requests, width, width]: for (j, k), whether node k is node j or before it in the text.

    Padding nodes after a tree's last one come before no other node.
    """
    width, device = verify_input.draft_token_num, verify_input.draft_token.device
    if verify_input.tree_topk == 1:
        return torch.ones((1, width, width), dtype=torch.bool, device=device).tril_()
    nodes = torch.arange(width, device=device)
    itself = torch.eye(width, device=device)
    siblings = _closure(itself + (verify_input.retrieve_next_sibling[..., None] == nodes))
    first = (verify_input.retrieve_next_token[..., None] == nodes).float()
    return _closure(itself + first @ siblings).transpose(1, 2) > 0


def _closure(links: Tensor) -> Tensor:
    """Return the transitive closure of *links* [requests, width, width], which are 1 or 0."""
    for _ in range((links.shape[1] - 1).bit_length()):
        links = (links @ links).clamp_(max=1)
    return links


def apply(counted: Counted, latest: LatestTokens, verify_input: Any, batch: Any, logits: Tensor) -> None:
    """Add to each row of *logits* [requests * width, vocabulary] the penalties of the text before it."""
    width = verify_input.draft_token_num
    nodes = verify_input.draft_token.view(-1, width).long()
    positions = verify_input.positions.view(-1, width).long()
    pending, places = latest.read(batch.req_pool_indices, counted.first)
    # [requests, width, n]: the uncounted tokens, and which of them are before each row
    before = (places < batch.seq_lens[:, None])[:, None].expand(-1, width, -1)
    among = paths(verify_input) & (positions >= counted.first[:, None])[:, None]
    more = torch.cat((before, among), dim=2)
    # The root is in every row's text, so its penalties may be set again in place of tokens that are not.
    tokens = torch.where(more, torch.cat((pending, nodes), dim=1)[:, None], nodes[:, :1, None]).flatten(0, 1)

    def marked(part: tuple[Tensor, Tensor]) -> Tensor:
        sums, one = part
        return sums.repeat_interleave(width, 0).scatter_(
            1, tokens, one.repeat_interleave(width, 0).expand(tokens.shape)
        )

    additive: list[Tensor] = []
    if counted.frequency is not None:
        sums, one = counted.frequency
        spent = (one[:, None] * more).flatten(0, 1)
        additive.append(sums.repeat_interleave(width, 0).scatter_add_(1, tokens, spent).neg_())
    if counted.presence is not None:
        additive.append(marked(counted.presence).neg_())
    if counted.minimum is not None:
        least, stops = counted.minimum
        lengths = counted.outputs[:, None] + positions + 1 - counted.first[:, None]
        additive.append(torch.where((lengths < least)[..., None], stops[:, None], 0.0).flatten(0, 1))
    if additive:
        for other in additive[1:]:
            additive[0].add_(other)
        logits.add_(additive[0])
    if counted.repetition is not None:
        from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

        apply_scaling_penalties(logits, marked(counted.repetition))
