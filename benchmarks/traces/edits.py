"""Edits of this project's own files as requests: a file, what to change, the changed file; with a draft's acceptance.

    python -m benchmarks.traces.edits texts FILE
    python -m benchmarks.traces.edits acceptance FILE

The texts are from the project's git history, in SmolLM2's tokens. At each token of an answer SmolLM2's EAGLE-3 draft
has drafted what would follow, along the target's features of the very text, in plain PyTorch: its acceptance is
recorded, token by token, and so is known exactly for a copied text. The model itself would write other answers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.long_contexts import smollm2
from benchmarks.traces.recorder import Recorder
from sglang_adaptive.lab.traces.trace import CHAIN

ROOT = Path(__file__).parents[2]
BYTES = 1200, 4500
"""Least and most bytes of a file, about 300 to 1,200 tokens."""
CHANGED = 2, 40
"""Least and most lines that a commit changes of it."""


class Texts(NamedTuple):
    """Recorded requests, one after the other in each array."""

    tokens: np.ndarray
    """Prompt, then output."""
    prompt: np.ndarray
    output: np.ndarray
    """Lengths by request."""
    accepted: np.ndarray
    """By output token that is the last one known, the drafts that the draft gets accepted, at most CHAIN."""

    def of(self, request: int) -> tuple[list[int], list[int], list[int]]:
        """Return the prompt, the output and the acceptance of a request."""
        begin = int((self.prompt + self.output)[:request].sum())
        first = int(self.output[:request].sum())
        middle, end = begin + int(self.prompt[request]), begin + int(self.prompt[request] + self.output[request])
        accepted = self.accepted[first : first + int(self.output[request])]
        return self.tokens[begin:middle].tolist(), self.tokens[middle:end].tolist(), accepted.tolist()


def load(path: Path) -> Texts:
    """Read recorded requests."""
    with np.load(path) as found:
        return Texts(**{name: found[name] for name in Texts._fields})


def edits(count: int) -> list[tuple[str, str, str]]:
    """Return *count* edits, spread over the history: the file before, the commit's subject, the file after."""
    found = list(_edits())
    return [found[at * len(found) // count] for at in range(count)]


def _edits() -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    log = _git("log", "--no-merges", "--diff-filter=M", "--numstat", "--format=%x00%H%x09%s", "--", "*.py")
    for commit in log.split("\0")[1:]:
        head, *files = [line for line in commit.splitlines() if line]
        name, subject = head.split("\t", 1)
        for line in files:
            added, removed, path = line.split("\t")
            if path in seen or not CHANGED[0] <= int(added) + int(removed) <= CHANGED[1] or "=>" in path:
                continue
            before, after = (_git("show", f"{revision}:{path}") for revision in (f"{name}^", name))
            if all(BYTES[0] <= len(text) <= BYTES[1] for text in (before, after)):
                seen.add(path)
                yield before, subject, after


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def accepted(recorder: Recorder, ids: torch.Tensor, prompt: int) -> list[int]:
    """Return what the draft gets accepted behind each output token of the text *ids* [T]."""
    with torch.inference_mode():
        _, features = recorder.target.prefill(ids[None], recorder.target.cache(1, len(ids)))
        drafts, _ = recorder.draft.chains(recorder.target.embedding, ids, features[0], prompt - 1, CHAIN)
    output = ids[prompt:]
    padded = torch.cat([output, output.new_full((CHAIN,), -1)])
    truth = padded.unfold(0, CHAIN, 1)[1 : len(output) + 1]
    right = (drafts[: len(truth)] == truth).long().cumprod(dim=-1).sum(dim=-1).tolist()
    return [*right, *[0] * (len(output) - len(right))]


def main(argv: Sequence[str]) -> int:
    """Write the texts, or put the draft's acceptance into a file that has them."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=["texts", "acceptance"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=32, help="requests")
    parser.add_argument("--models", type=Path, default=Path("/tmp/m"), help="folder that may have smollm2/")
    given = parser.parse_args(argv)
    target, draft = smollm2(given.models)
    if given.what == "texts":
        kept = list(_texts(AutoTokenizer.from_pretrained(target), given.count))
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        recorder, texts = Recorder(target, draft, device, torch.float32, 0.0, 0), load(given.file)
        kept = []
        for prompt, output, _ in map(texts.of, range(len(texts.prompt))):
            right = accepted(recorder, torch.tensor(prompt + output, device=device), len(prompt))
            kept.append((prompt, output, right))
            print(f"{len(prompt):5d} + {len(output):5d} tokens, {sum(right) / len(right):.2f} drafts right", flush=True)
    np.savez_compressed(
        given.file, tokens=np.array([token for prompt, output, _ in kept for token in prompt + output], np.int32),
        prompt=np.array([len(prompt) for prompt, _, _ in kept]), output=np.array([len(out) for _, out, _ in kept]),
        accepted=np.array([one for *_, right in kept for one in right], np.uint8),
    )  # fmt: skip
    return 0


def _texts(tokenizer: Any, count: int) -> Iterator[tuple[list[int], list[int], list[int]]]:
    for before, subject, after in edits(count):
        words = f"{before}\n\nChange this file: {subject}. Answer with the whole new file and nothing else."
        turn = [{"role": "user", "content": words}]
        prompt = list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))
        output = list(tokenizer(after)["input_ids"])
        yield prompt, output, [0] * len(output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
