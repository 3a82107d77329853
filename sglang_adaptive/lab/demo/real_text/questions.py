"""The questions to the real model, by kind: the more predictable the text, the more drafts are accepted."""

from __future__ import annotations

from pathlib import Path

from sglang_adaptive.lab.demo.workload import Phase

QUESTIONS = {
    "chat": "I slept badly and have a long day ahead. What can I do to stay awake and in a good mood?",
    "code": "Write a Python class Stack with push, pop, peek and is_empty, then show how to use it.",
    "translate": "Translate to French: The train leaves at eight in the morning. We will have breakfast at the "
    "station, and in the afternoon we will visit my grandmother, who lives in a small house by the sea.",
    "copy": "Repeat the following text word for word, and nothing else:\n\nThe old lighthouse stood on a cliff above "
    "the sea. Every evening the keeper climbed its narrow stairs, lit the great lamp, and watched the ships pass by. "
    "In winter, when storms came from the north, he stayed awake all night, because he knew that far out in the dark "
    "somebody was looking for his light.",
}
WARM_UP = ("Name five fruits and say what each tastes like.", "Explain how rain forms, step by step.")


def phases(turn: int, tokens: int) -> tuple[Phase, ...]:
    """Return one phase for each question, its answer ending by itself or after *tokens*; *turn* counts from 1."""
    return tuple(Phase(f"{turn}-{kind}", kind, 1, (text,), tokens) for kind, text in QUESTIONS.items())


class Template:
    """The target's tokenizer and chat template."""

    def __init__(self, target: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(target)

    def tokens(self, question: str) -> list[int]:
        """Return the token ids of a conversation that begins with *question*, up to where the answer begins."""
        turn = [{"role": "user", "content": question}]
        asked = self._tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)
        return list(asked["input_ids"])
