"""Requests to edit this project's own files: a file, the change, the changed file; and the draft's acceptance.

    python -m benchmarks.traces.edits texts FILE
    python -m benchmarks.traces.edits acceptance FILE --trace TRACE

The texts are from the project's git history, as SmolLM2's tokens. At every token of an answer, SmolLM2's EAGLE-3 draft
predicts what follows, using the target's features of that text, in plain PyTorch. Acceptance is recorded token by
token, so it is exact for copied text. The model itself would write other answers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.harness.results import command_parser
from benchmarks.harness.start import smollm2_folders
from benchmarks.traces import texts
from benchmarks.traces.prompts import Prompt, as_chat
from benchmarks.traces.record import origin, save, with_tokens
from benchmarks.traces.recorder import Recorder, Recording
from benchmarks.traces.writing import Writing

ROOT = Path(__file__).parents[2]
BYTES = 1200, 4500
"""Minimum and maximum bytes of a file, about 300 to 1,200 tokens."""
CHANGED = 2, 40
"""Minimum and maximum lines that a commit changes in it."""


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


def recorded(recorder: Recorder, prompt: Sequence[int], output: Sequence[int]) -> Recording:
    """Return the acceptance along a text that the target did not generate."""
    ids = torch.tensor([*prompt, *output], device=recorder.device)
    with torch.inference_mode():
        _, features = recorder.target.prefill(ids[None], recorder.target.cache(1, len(ids)))
        return recorder.judged(Writing(ids, len(prompt), features[0], ended=True), len(output))


def main(argv: Sequence[str]) -> int:
    """Write the texts, or add the draft's acceptance to a file of texts."""
    given = _parser().parse_args(argv)
    target, draft = smollm2_folders(given.models)
    if given.what == "texts":
        texts.save(given.file, _texts(AutoTokenizer.from_pretrained(target), given.count))
        return 0
    recorder, found = Recorder(target, draft, given.device, torch.float32, 0.0, 0), texts.load(given.file)
    done: list[Recording] = []
    for prompt, output, _ in map(found.of, range(len(found.prompt))):
        done.append(recorded(recorder, prompt, output))
        right = done[-1].accepted
        print(f"{len(prompt):5d} + {len(output):5d} tokens, {right.mean():.2f} drafts right", flush=True)
    texts.save(given.file, map(with_tokens, done))
    if given.trace is None:
        return 0
    prompts = "edits of this project's files, chat template; the answer is the changed file"
    about = origin("edits", argv, target, draft, prompts, given.device)
    save(given.trace, about, [(Prompt("edits", ""), one) for one in done])
    return 0


def _texts(tokenizer: Any, count: int) -> Iterator[tuple[list[int], list[int], list[int]]]:
    for before, subject, after in edits(count):
        words = f"{before}\n\nChange this file: {subject}. Answer with the whole new file and nothing else."
        output = list(tokenizer(after)["input_ids"])
        yield as_chat(tokenizer, words), output, [0] * len(output)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("traces.edits", __doc__)
    parser.add_argument("what", choices=["texts", "acceptance"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--trace", type=Path, help="also write the acceptance to this trace")
    parser.add_argument("--count", type=int, default=32, help="number of requests")
    parser.add_argument("--models", type=Path, default=Path("/tmp/m"), help="models folder, which may contain smollm2/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
