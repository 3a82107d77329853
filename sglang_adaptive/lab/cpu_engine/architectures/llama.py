"""SGLang's classes for Llama and its EAGLE-3 draft. The draft can also be a layer of a multi-layer draft."""

from __future__ import annotations

from typing import Any

from sglang.srt.models import llama_eagle3
from sglang.srt.models.llama import LlamaForCausalLM


class LlamaForCausalLMEagle3(llama_eagle3.LlamaForCausalLMEagle3):  # type: ignore[misc]  # SGLang's types
    """With ``--enable-multi-layer-eagle`` each layer is the whole draft, trained to draft the next token."""

    def __init__(self, *args: Any, draft_model_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_layer = draft_model_idx is not None

    def set_embed_and_head(self, embed: Any, head: Any) -> None:
        """Take the target's embeddings; a layer keeps its own head, which SGLang would replace."""
        if self._is_layer:
            self.set_embed(embed)
        else:
            super().set_embed_and_head(embed, head)


EntryClass = [LlamaForCausalLM, LlamaForCausalLMEagle3]
