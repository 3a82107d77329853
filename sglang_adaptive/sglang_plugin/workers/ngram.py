"""NGRAM: a corpus of earlier text proposes a token tree, without a draft model.

SGLang 0.5.23 builds the corpus, buffers, attention backend and CUDA graphs for trees of one width. Here n steps are a
tree of n drafts and its root, with a backend and graphs per number of steps. The corpus returns the widest tree, and a
narrower round keeps part of it. At zero steps it is not queried: the round verifies only the root, like a plain decode.
The corpus reads all generated text at every width, and also prompts, which SGLang leaves out.

The accepted tokens that a round passes to the next one always have the widest width, because with overlap they are in
one buffer, and one batch can have requests from rounds of different widths.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.fast_path.kv_only import swapped
from sglang_adaptive.sglang_plugin.start.state_builds import target_parts
from sglang_adaptive.sglang_plugin.workers.ngram_inputs import Ints, Prompts, cut, prepare_roots, read_lengths
from sglang_adaptive.sglang_plugin.workers.own_rounds import NOTHING, OwnRounds, Parts, begin_rounds

_BUFFERS = (
    "draft_tokens_batch",
    "tree_mask_batch",
    "retrieve_indexes_batch",
    "retrieve_next_token_batch",
    "retrieve_next_sibling_batch",
    "positions_batch",
)
"""SGLang's lists of a round's inputs, one entry per batch size; shapes depend on the width of the trees."""


class AdaptiveNgramWorker(OwnRounds, NGRAMWorker):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the width that the controller chooses; implements the protocol AdaptiveWorker."""

    def __init__(self, server_args: Any, gpu_id: int, *args: Any, **kwargs: Any) -> None:
        self.gpu_id = gpu_id
        self._widest = max_speculative_num_draft_tokens()
        self._at_the_widest = {"draft_token_num": self._widest}
        """The width while SGLang reads the previous round's tokens and the corpus's trees."""
        # SGLang's constructor builds the corpus at the widest width; the launch width is restored before any draft.
        with get_spec().override(speculative_num_draft_tokens=self._widest):
            super().__init__(server_args, gpu_id, *args, **kwargs)
        self._take_width(get_spec().speculative_num_draft_tokens)
        self._buffers: dict[int, dict[str, Any]] = {}
        self.rounds = begin_rounds(self)
        # How a round is prepared decides what the corpus reads, so ranks that differ would draft different trees.
        self.roots = Guard("ngram-roots")
        self.prompts = Prompts(self.max_trie_depth)

    # -- start-up ---------------------------------------------------------------------------------------------

    def _build(self, steps: int, width: int, sizes: list[int] | None) -> SpecRuntimeState:
        # A tree of one node is a chain. With topk 1, fa3 attends once per layer, not once each for prefix and tree.
        is_fa3 = hasattr(self._target_worker.model_runner.attn_backend, "fa_impl_ver")
        chain = {"speculative_eagle_topk": 1} if width == 1 and is_fa3 else {}
        with get_spec().override(**self._spec_of(width), **chain):
            return self._state(target_parts(self, get_spec().speculative_num_steps, width))

    def _state(self, target: Parts, draft: Parts = NOTHING, extend: Parts = NOTHING) -> SpecRuntimeState:
        self._init_preallocated_tensors()
        self._buffers[self.draft_token_num] = {name: getattr(self, name) for name in _BUFFERS}
        return super()._state(target)

    def _take_width(self, width: int) -> None:
        self.draft_token_num = self.speculative_num_draft_tokens = width
        self.speculative_num_steps = width - 1

    # -- every round ------------------------------------------------------------------------------------------

    def _take_draft(self, state: SpecRuntimeState) -> None:
        for name, views in self._buffers[state.speculative_num_draft_tokens].items():
            setattr(self, name, views)

    def _spec_of(self, width: int) -> dict[str, int]:
        # SGLang sizes buffers by topk times steps.
        steps = width // get_spec().speculative_eagle_topk
        return {**super()._spec_of(width), "speculative_num_steps": steps}

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode():
            self.activate_step_by_batch(len(batch.reqs))
        else:
            self.prompts.join(batch.reqs)
        result = super().forward_batch_generation(batch, *args, **kwargs)
        self.prompts.read(self.ngram_corpus)
        self._widen(result.next_draft_input)
        return result

    def clear_cache_pool(self) -> None:
        super().clear_cache_pool()
        self.prompts.forget()

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        plain = self.speculative_num_steps == 0 and batch.forward_mode.is_decode()
        if plain:
            self.rounds.tell(Stage.before_zero_steps, batch)
        if not (plain and self.roots.attempt(prepare_roots, self, batch)):
            read_lengths(batch)
            super()._prepare_for_speculative_decoding(batch)

    def _prepare_draft_tokens(self, batch: Any) -> tuple[Ints, Ints]:
        with swapped((self, self._at_the_widest)):
            tokens, mask = super()._prepare_draft_tokens(batch)
        return cut(tokens, mask, self._widest, self.draft_token_num)

    def _update_ngram_corpus(self, batch: Any) -> None:
        with swapped((self, self._at_the_widest)):
            super()._update_ngram_corpus(batch)

    def _widen(self, handed_over: Any) -> None:
        accepted = handed_over.accept_tokens.view(-1, handed_over.draft_token_num)
        missing = self._widest - handed_over.draft_token_num
        handed_over.accept_tokens = torch.nn.functional.pad(accepted, (0, missing)).flatten()
        handed_over.draft_token_num = self._widest
