"""A random toy-size Llama with a chat template."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<begin>", "<end>", "<unknown>"]
WORDS = [f"word{number}" for number in range(120)] + [f"last{number}." for number in range(20)]
TEMPLATE = (
    "{% for message in messages %}<begin> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<begin> {% endif %}"
)


@pytest.fixture(scope="session")
def toy_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "target"
    torch.manual_seed(5)
    config = LlamaConfig(
        **{"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 8, "vocab_size": 143},
        **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
        **{"max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.3},
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    begin, end, unknown = SPECIAL
    whole = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=begin, eos_token=end, unk_token=unknown, clean_up_tokenization_spaces=False
    )
    whole.chat_template = TEMPLATE
    whole.save_pretrained(folder)
    return folder
