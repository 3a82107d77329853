"""Asks the contenders in turns: each answers the same question before the next one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_adaptive.client import Client
from sglang_adaptive.lab.chat.conversation import drafting
from sglang_adaptive.lab.demo.drawing import Style
from sglang_adaptive.lab.demo.measure import SwitchLog, adaptive_state, blaming, force_steps, phase_result
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.real_text.screen import AnswerScreen
from sglang_adaptive.lab.demo.results import Contender, DemoError, Phase, PhaseResult, Run, tokens_per_second
from sglang_adaptive.lab.demo.servers import PLAIN, STATIC_DEPTHS, TITLES, Fleet

# The questions to the real model, by kind: the more predictable the text, the more drafts are accepted.


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


# Sends one question to one server, shows the growing answer, and times it.


Grown = Callable[[str, int], None]
"""Called with the text so far and its number of tokens."""


def measure_answer(client: Client, phase: Phase, prompt: Sequence[int], grown: Grown) -> PhaseResult:
    """Let an idle server answer *prompt*, from an empty prefix cache; greedy, up to the end of the turn."""
    client.flush_cache()
    before = adaptive_state(client)
    log = SwitchLog(before)
    begin, start = time.time(), time.perf_counter()
    last: dict[str, Any] | None = None
    for last in client.stream(list(prompt), phase.max_new_tokens):
        grown(last["text"], last["meta_info"]["completion_tokens"])
        if log.is_due():
            log.read(adaptive_state(client))
    seconds = time.perf_counter() - start
    if last is None:
        raise DemoError("the server sent no answer")
    return phase_result(client, phase, [last], begin=begin, seconds=seconds, before=before, log=log)


HELD = "static"
"""Key of the server on which fixed steps are held, so that they do not affect the adaptive servers."""


def entrants(policies: Sequence[str]) -> list[Contender]:
    """Return the contenders, the one without speculation first."""
    static = [Contender(f"static-{depth}", f"static {depth}", HELD, depth) for depth in STATIC_DEPTHS]
    adaptive = [Contender(policy, TITLES[policy], policy, adaptive=True) for policy in policies]
    return [Contender(PLAIN, "no speculation", PLAIN), *static, *adaptive]


@dataclass
class Contest:
    """Asks every contender every question, *turns* times; shows the first answers of the first adaptive one."""

    fleet: Fleet
    contenders: Sequence[Contender]
    template: Template
    style: Style
    progress: Progress
    _results: dict[str, list[PhaseResult]] = field(default_factory=dict)

    def run(self, turns: int, tokens: int) -> list[Run]:
        """Return the runs, in the order of the contenders."""
        self._warm_up(tokens)
        shown = next(contender for contender in self.contenders if contender.adaptive)
        for turn in range(1, turns + 1):
            if turn > 1:
                self.progress.done(f"turn {turn} of {turns}: the same questions, so that chance weighs less")
            for number, phase in enumerate(phases(turn, tokens)):
                if turn == 1:
                    self._introduce(phase)
                first = (number + turn) % len(self.contenders)
                for contender in [*self.contenders[first:], *self.contenders[:first]]:
                    self._take_turn(contender, phase, shown=turn == 1 and contender is shown)
                self.progress.done(f"{phase.family}, tokens/s: {self._speeds(phase)}")
        return [self._run(contender) for contender in self.contenders]

    def _introduce(self, phase: Phase) -> None:
        self.progress.clear()
        question = phase.prompts[0].replace("\n\n", " ")
        print(f"\n{self.style.bold(phase.family)}\n{self.style.prose(question)}\n", flush=True)

    def _take_turn(self, contender: Contender, phase: Phase, *, shown: bool) -> None:
        server = self.fleet[contender.server]
        said = f"{contender.title} answers: {phase.family}"
        self.progress.now(said)
        with blaming(server, contender.title):
            if contender.forced_steps is not None:
                force_steps(server, contender.forced_steps)
            screen = None
            if shown:
                self.progress.clear()
                screen = AnswerScreen(sys.stdout, self.style, lambda: drafting(server))
                screen.heading()
            grown = screen.grown if screen else lambda text, tokens: self.progress.now(f"{said}, {tokens} tokens")
            result = measure_answer(server, phase, self.template.tokens(phase.prompts[0]), grown)
            if screen:
                screen.end()
                print(flush=True)
        self._results.setdefault(contender.key, []).append(result)

    def _warm_up(self, tokens: int) -> None:
        """Ask unmeasured questions first, so that none measured is a server's first."""
        for contender in self.contenders:
            server = self.fleet[contender.server]
            self.progress.now(f"warming up: {contender.title}")
            with blaming(server, contender.title):
                if contender.forced_steps is not None:
                    force_steps(server, contender.forced_steps)
                questions = WARM_UP if contender.adaptive else WARM_UP[:1]
                for question in questions:
                    server.generate(self.template.tokens(question), tokens if contender.adaptive else tokens // 4)
        self.progress.done("warmed up")

    def _speeds(self, phase: Phase) -> str:
        latest = {contender.title: self._results[contender.key][-1] for contender in self.contenders}
        return ", ".join(f"{title} {tokens_per_second([result]):.1f}" for title, result in latest.items())

    def _run(self, contender: Contender) -> Run:
        state = adaptive_state(self.fleet[contender.server])
        tiers = () if state is None else tuple(state["tiers"])
        degraded = None if state is None else state["degraded_reason"]
        return Run(contender, tiers, tuple(self._results[contender.key]), degraded)
