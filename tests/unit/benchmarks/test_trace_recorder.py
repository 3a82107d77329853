"""The recorder computes what the models do: compared with Transformers and the training code's own math."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.traces.eagle3 import Eagle3
from benchmarks.traces.llama import Llama
from benchmarks.traces.record import main
from benchmarks.traces.recorder import Recorder
from benchmarks.traces.repetition import LONGEST_BLOCK, SHORTEST_COPY, first_copy
from benchmarks.traces.weights import ModelError
from benchmarks.traces.writing import write
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.traces import read

CPU = torch.device("cpu")
TARGET, DRAFT = Path(models.target_path()), Path(models.draft_path())
PROMPTS = [[5, 6, 7], [9] * 11, list(range(40, 47))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with fewer keys than heads, and with its head tied to its embedding."""
    torch.manual_seed(3)
    config = LlamaConfig(
        **{"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 5, "vocab_size": 97},
        **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
        **{"max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3},
    )
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_outputs_and_features_are_those_of_transformers(folder: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(folder)
    target = Llama(folder, [0, 2, 4], CPU, torch.float32)
    for prompt, writing in zip(PROMPTS, write(target, PROMPTS, 20, frozenset(), 0.0, generator()), strict=True):
        ids = writing.ids[None]
        with torch.no_grad():
            states = reference.model(ids, output_hidden_states=True).hidden_states
            best = reference(ids).logits[0].argmax(dim=-1)
        assert ids[0, : len(prompt)].tolist() == prompt and len(ids[0]) == len(prompt) + 20
        assert torch.equal(ids[0, len(prompt) :], best[len(prompt) - 1 : -1])
        # The last entry of Transformers is normalized; layer 4 is the last, so its output is excluded here.
        expected = torch.cat([states[1], states[3]], dim=-1)[0, :-1]
        torch.testing.assert_close(writing.features[:, : 2 * 48], expected, rtol=1e-3, atol=1e-4)


def test_a_text_ends_where_it_says_so_whatever_the_others_do(folder: Path) -> None:
    target = Llama(folder, None, CPU, torch.float32)
    whole = write(target, PROMPTS, 30, frozenset(), 0.0, generator())
    end = int(whole[1].ids[whole[1].prompt + 4])
    for one, full in zip(write(target, PROMPTS, 30, frozenset([end]), 0.0, generator()), whole, strict=True):
        output, everything = one.ids[one.prompt :].tolist(), full.ids[full.prompt :].tolist()
        expected = everything[: everything.index(end) + 1] if end in everything else everything
        assert (output, one.ended) == (expected, end in everything)
        torch.testing.assert_close(one.features, full.features[: len(one.features)], rtol=1e-4, atol=1e-4)


def test_sampled_text_has_the_targets_distribution(folder: Path) -> None:
    target = Llama(folder, None, CPU, torch.float32)
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(folder)(torch.tensor([PROMPTS[0]])).logits[0, -1]
    draws = 4000
    first = [int(w.ids[-1]) for w in write(target, [PROMPTS[0]] * draws, 1, frozenset(), 2.0, generator(5))]
    share = np.bincount(first, minlength=97) / draws
    expected = (logits / 2.0).softmax(dim=-1).numpy()
    assert np.abs(share - expected).max() < 5 * np.sqrt(0.25 / draws)
    assert np.unique(first).size > 3


def test_batches_and_waves_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({family: models.prompts(family)[:3] for family in models.FAMILIES}))
    traces = []
    for name, more in (("one.npz", []), ("several.npz", ["--wave", 5, "--batch-tokens", 400])):
        arguments = ["--target", TARGET, "--draft", DRAFT, "--prompts", path, "--out", tmp_path / name, *more]
        assert main([str(word) for word in (*arguments, "--positions", 30, "--device", "cpu")]) == 0
        traces.append(read(tmp_path / name))
    one, several = traces
    assert "--out one.npz" in one.about["command"] and str(tmp_path) not in one.about["command"]
    assert one.category == several.category == models.FAMILIES * 3
    for key in ("length", "loop_start", "accepted"):
        assert np.array_equal(getattr(one, key), getattr(several, key))


@pytest.mark.parametrize(
    ("change", "config"),
    [
        ({"midlayer.self_attn.q_proj.bias": torch.zeros(48)}, {}),
        ({"fc_norm.0.weight": torch.ones(48)}, {}),
        ({}, {"norm_output": True}),
        ({}, {"eagle_config": {"norm_before_fc": True}}),
        ({}, {"num_hidden_layers": 2}),
        ({}, {"model_type": "qwen2"}),
    ],
)
def test_a_draft_that_computes_something_else_is_refused(tmp_path: Path, change: dict, config: dict) -> None:
    """The changes are to the tiny pair's draft, which the recorder takes."""
    save_file(load_file(DRAFT / "model.safetensors") | change, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(json.loads((DRAFT / "config.json").read_text()) | config))
    with pytest.raises(ModelError) as caught:
        Eagle3(tmp_path, CPU, torch.float32)
    assert "\n" not in str(caught.value)


def test_an_output_that_ends_is_judged_to_its_end_and_no_further(tmp_path: Path) -> None:
    """After the end token, here one that the tiny pair writes, nothing is accepted."""
    recorder = Recorder(TARGET, DRAFT, "cpu", torch.float32, temperature=0.0, seed=0)
    prompt = recorder.encode(models.prompts("easy")[0], chat=False)
    whole = recorder.record([prompt], 40, ignore_eos=True)[0]
    end = next(i for i in range(8, 40) if whole.tokens[i] not in whole.tokens[:i])
    recorder.ends = frozenset([whole.tokens[end]])
    ended = recorder.record([prompt], 40)[0]
    assert ended.tokens == whole.tokens[: end + 1]
    assert ended.accepted.tolist() == [min(int(n), end - t) for t, n in enumerate(whole.accepted[:end])]


@pytest.mark.parametrize("block", [1, 2, 7, SHORTEST_COPY, LONGEST_BLOCK])
def test_a_copy_starts_where_the_first_block_ends(block: int) -> None:
    head = list(range(1000, 1050))
    loop = [i % block for i in range(block + max(block, SHORTEST_COPY))]
    assert first_copy(head + loop + [-1] * 5) == len(head) + block
    assert first_copy([*head, *loop[:-1], -1, *head]) is None
