"""Train the pair: a byte-level Llama on code and prose, then its EAGLE-3 draft on the target's features.

    python -m benchmarks.real_pair.train --out DIR --text ROOT... [--target-seconds N] [--draft-seconds N]

The models, the unrolled draft training and the checkpoint format are those of the tiny pair in ``train/``; only size,
text and device differ. Training stops when its seconds are over: a GPU is lent for minutes, not for steps.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.real_pair.corpus import Corpus, gather
from train import checkpoint
from train.draft import Draft
from train.model import ModelSize
from train.optimise import Recipe, optimisers
from train.target import Target
from train.teach import UNROLL, unrolled_loss

SIZES = {
    "real": ModelSize(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, positions=8192),
    "tiny": ModelSize(),
}
RATES = {"target": Recipe(steps=0, matrix_rate=0.02), "draft": Recipe(steps=0, matrix_rate=0.01)}
PROSE_SHARE = 0.2
TARGET_SHAPES = ((64, 1024), (16, 4096))
"""Windows and bytes a window: most of the training, and its last fifth, so that long contexts work."""
DRAFT_SHAPE = (48, 512)
"""The draft never sees a context longer than this."""
CHAINS_ONE_IN = 3
PROMPT_BYTES, PROMPTS = 256, 32
CONTEXTS = (256, 512, 1024, 2048, 3072)
LONG_PROMPTS = 8


def main() -> int:
    """Train, save, write prompts; every part says how long it took."""
    options = _parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    torch.set_float32_matmul_precision("high")
    # cuDNN's attention refused its backward pass where torch and the host's cuDNN were of different ages.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(1)
    begin = time.monotonic()
    texts = {kind: gather(options.text, kind, options.most_bytes) for kind in ("code", "prose")}
    found = {kind: len(text.train) for kind, text in texts.items()}
    print(f"text: {found} bytes, {time.monotonic() - begin:.0f} s", flush=True)
    shrink = 1 if options.size == "real" else 16

    target = Target(SIZES[options.size])
    facts = {"parameters": sum(weight.numel() for weight in target.parameters()), "text_bytes": found}
    facts["target"] = _train("target", target, options.target_seconds, _target_loss(target, texts, shrink))
    target.eval().requires_grad_(False)
    facts["held_out_bits_a_byte"] = {kind: _bits(target, text) for kind, text in texts.items()}
    print(f"held out, bits a byte: {facts['held_out_bits_a_byte']}", flush=True)
    checkpoint.save(options.out / "target", target)

    draft = Draft(target.size)
    draft.start_from(target)
    facts["draft"] = _train("draft", draft, options.draft_seconds, _draft_loss(draft, target, texts, shrink))
    checkpoint.save(options.out / "draft", draft)

    facts |= {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__}
    facts |= {"draft_training_length": DRAFT_SHAPE[1], "target_training_length": TARGET_SHAPES[1][1]}
    (options.out / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    (options.out / "prompts.json").write_text(json.dumps(_prompts(texts)) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="folders to read code and prose below")
    parser.add_argument("--target-seconds", type=float, default=200.0)
    parser.add_argument("--draft-seconds", type=float, default=120.0)
    parser.add_argument("--size", choices=SIZES, default="real", help="tiny: to try the path on a CPU")
    parser.add_argument("--most-bytes", type=int, default=400_000_000, help="text of a kind at most")
    return parser.parse_args()


def _train(name: str, model: nn.Module, seconds: float, loss_at: Callable[[float], Tensor]) -> dict[str, float]:
    """Minimise *loss_at(share of the time gone)* for *seconds*; return what was reached."""
    recipe = RATES[name]
    pair = optimisers(model, recipe)
    begin, step, gone, loss = time.monotonic(), 0, 0.0, torch.zeros(())
    while gone < 1.0:
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            loss = loss_at(gone)
        loss.backward()
        factor = min(1.0, (step + 1) / recipe.warm_up, (1.0 - gone) / recipe.decay_share)
        for optimiser, rate in zip(pair, (recipe.matrix_rate, recipe.other_rate), strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        if step % 50 == 1:
            print(f"{name}: step {step}, loss {loss.item():.3f}, {time.monotonic() - begin:.0f} s", flush=True)
        gone = (time.monotonic() - begin) / seconds
    return {"steps": step, "seconds": round(time.monotonic() - begin, 1), "loss": round(loss.item(), 4)}


def _windows(texts: dict[str, Corpus], count: int, length: int) -> Tensor:
    prose = max(1, round(PROSE_SHARE * count))
    return torch.cat([texts["code"].windows(count - prose, length), texts["prose"].windows(prose, length)])


def _target_loss(target: Target, texts: dict[str, Corpus], shrink: int) -> Callable[[float], Tensor]:
    def loss_at(gone: float) -> Tensor:
        count, length = TARGET_SHAPES[gone > 0.8]
        ids = _windows(texts, max(2, count // shrink), length // shrink + 1)
        logits, _ = target(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return loss_at


def _draft_loss(draft: Draft, target: Target, texts: dict[str, Corpus], shrink: int) -> Callable[[float], Tensor]:
    def loss_at(gone: float) -> Tensor:
        count, length = DRAFT_SHAPE
        ids = _windows(texts, max(2, count // shrink), length // min(shrink, 4))
        with torch.no_grad():
            logits, features = target(ids)
            wanted, embeds = logits.softmax(dim=-1), target.model.embed_tokens(ids)
        chosen = torch.randperm(ids.shape[1] - UNROLL)[: ids.shape[1] // CHAINS_ONE_IN]
        return unrolled_loss(draft.unroll(embeds, features, UNROLL, chosen), wanted, chosen)

    return loss_at


@torch.no_grad()
def _bits(target: Target, text: Corpus) -> float:
    """Cross-entropy of held-out text in bits a byte, over the files' first 1,024 bytes."""
    files = [content[:1024] for content in text.held_out if len(content) >= 1024][:64]
    ids = torch.tensor([list(content) for content in files])
    logits, _ = target(ids[:, :-1])
    nats = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    return round(nats.item() / 0.6931471805599453, 4)


def _prompts(texts: dict[str, Corpus]) -> dict[str, object]:
    """Held-out openings and noise, as token ids; and the ends of long held-out contexts by their length."""
    draw = random.Random(1)
    families = {
        kind: [list(content[:PROMPT_BYTES]) for content in text.held_out if len(content) > PROMPT_BYTES][:PROMPTS]
        for kind, text in texts.items()
    }
    families["noise"] = [[draw.randrange(33, 127) for _ in range(PROMPT_BYTES)] for _ in range(PROMPTS)]
    long = [content for content in texts["code"].held_out if len(content) >= CONTEXTS[-1]][:LONG_PROMPTS]
    contexts = {str(length): [list(content[:length]) for content in long] for length in CONTEXTS}
    return {"families": families, "contexts": contexts}


if __name__ == "__main__":
    raise SystemExit(main())
