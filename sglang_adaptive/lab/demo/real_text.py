"""``sglang-adaptive demo --pair smollm2``: a real language model answers readable questions.

The contenders take turns: each answers the same question before the next one is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from sglang_adaptive import provenance
from sglang_adaptive.client import Client
from sglang_adaptive.lab.demo.demo import Demo
from sglang_adaptive.lab.demo.drawing import SPEED_NOTE, family_table, speed_table, timeline, who_was_fastest
from sglang_adaptive.lab.demo.measure import adaptive_state, finished, measure_phase, under
from sglang_adaptive.lab.demo.results import (
    Contender,
    DemoError,
    Phase,
    PhaseResult,
    Run,
    accept_length,
    mean_steps,
    tokens_per_second,
)
from sglang_adaptive.lab.demo.servers import HELD, Fleet, contenders, launches
from sglang_adaptive.lab.demo.terminal import AnswerScreen, Progress, console_of, rounds_by_steps
from sglang_adaptive.lab.models.folders import ModelError
from sglang_adaptive.lab.models.smollm2 import ready_pair, target_folder

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
"""Questions by kind of text: the more predictable the text, the more drafts are accepted."""

WARM_UP = ("Name five fruits and say what each tastes like.", "Explain how rain forms, step by step.")


def phases(turn: int, tokens: int) -> tuple[Phase, ...]:
    """Return one phase per question, ending with the answer or after *tokens*; *turn* counts from 1."""
    return tuple(Phase(f"{turn}-{kind}", kind, 1, (text,), tokens) for kind, text in QUESTIONS.items())


def template(target: Path) -> Callable[[str], list[int]]:
    """Return a function from a question to the token ids of a conversation up to the start of its answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)

    def tokens(question: str) -> list[int]:
        turn = [{"role": "user", "content": question}]
        return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"])

    return tokens


@dataclass
class Contest:
    """Asks every contender every question, *turns* times; shows the first answers of the first adaptive one."""

    fleet: Fleet
    contenders: Sequence[Contender]
    template: Callable[[str], list[int]]
    console: Console
    progress: Progress

    def __post_init__(self) -> None:
        self._results: dict[str, list[PhaseResult]] = {one.title: [] for one in self.contenders}

    def run(self, turns: int, tokens: int) -> list[Run]:
        """Return the runs, in the order of the contenders."""
        self._warm_up(tokens)
        shown = next(contender for contender in self.contenders if contender.adaptive)
        for turn in range(1, turns + 1):
            if turn > 1:
                self.progress.done(f"turn {turn} of {turns}: the same questions again, to reduce noise")
            for number, phase in enumerate(phases(turn, tokens)):
                if turn == 1:
                    self._introduce(phase)
                first = (number + turn) % len(self.contenders)
                for contender in [*self.contenders[first:], *self.contenders[:first]]:
                    self._take_turn(contender, phase, shown=turn == 1 and contender is shown)
                speeds = ((name, tokens_per_second(results[-1:])) for name, results in self._results.items())
                told = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds)
                self.progress.done(f"{phase.family}, tokens/s: {told}")
        return [finished(self.fleet[one.server], one, self._results[one.title]) for one in self.contenders]

    def _introduce(self, phase: Phase) -> None:
        self.progress.clear()
        question = phase.prompts[0].replace("\n\n", " ")
        self.console.print(Text.assemble("\n", (phase.family, "bold"), f"\n{question}\n"))

    def _take_turn(self, contender: Contender, phase: Phase, *, shown: bool) -> None:
        said = f"{contender.title} answers: {phase.family}"
        self.progress.now(said)
        with under(self.fleet, contender) as server:
            screen = None
            if shown:
                self.progress.clear()
                screen = AnswerScreen(self.console, lambda: rounds_by_steps(adaptive_state(server)))
            grown = screen.grown if screen else lambda text, tokens: self.progress.now(f"{said}, {tokens} tokens")
            prompt = self.template(phase.prompts[0])
            with screen or nullcontext():
                result = measure_phase(server, phase, lambda look: [_answer(server, prompt, phase, grown, look)])
            if shown:
                self.console.print()
        self._results[contender.title].append(result)

    def _warm_up(self, tokens: int) -> None:
        """Ask unmeasured questions first, so that no measured one is a server's first."""
        for contender in self.contenders:
            self.progress.now(f"warming up: {contender.title}")
            with under(self.fleet, contender) as server:
                questions = WARM_UP if contender.adaptive else WARM_UP[:1]
                for question in questions:
                    server.generate(self.template(question), tokens if contender.adaptive else tokens // 4)
        self.progress.done("warmed up")


def _answer(
    server: Client, prompt: list[int], phase: Phase, grown: Callable[[str, int], None], look: Callable[[], None]
) -> dict[str, Any]:
    """Return the last piece of a streamed answer; *grown* gets the text and the number of tokens so far."""
    piece: dict[str, Any] | None = None
    for piece in server.stream(prompt, phase.max_new_tokens):
        grown(piece["text"], piece["meta_info"]["completion_tokens"])
        look()
    if piece is None:
        raise DemoError("the server sent no answer")
    return piece


class RealTextDemo(Demo):
    """SmolLM2 without speculation, at fixed steps and adaptive, on the same questions in turns."""

    gigabytes_a_server = 2.6
    moves = False

    @property
    def servers(self) -> int:
        return len(self.policies) + 2

    def introduction(self, gigabytes: float) -> list[str]:
        sglang = provenance.versions("sglang")["sglang"]
        often = "once" if self.options.turns == 1 else f"{self.options.turns} times"
        return [
            f"This demo starts {self.servers} real SGLang {sglang} servers on this machine's CPU with "
            "SmolLM2-135M-Instruct and its EAGLE-3 draft: without speculation, at static depths, and adaptive. Each "
            f"answers the same {len(QUESTIONS)} questions {often}, one server at a time. It takes about six minutes "
            f"on two idle cores and {gigabytes:.0f} GB of memory. Ctrl-C stops the demo and its servers.",
            "Next to each line of the adaptive server's answer are the draft steps of its rounds and the tokens per "
            "round.",
        ]

    def launches(self) -> Mapping[str, Sequence[str]]:
        try:
            plain, draft = ready_pair(self.progress.now)
        except ModelError as error:
            raise DemoError(str(error)) from error
        return launches(plain, draft, [HELD, *self.policies], self.folder)

    def measured(self, fleet: Fleet) -> list[Run]:
        self.progress.now("loading the tokenizer")
        tokens, console = template(target_folder()), console_of(sys.stdout)
        contest = Contest(fleet, contenders(self.policies, HELD), tokens, console, self.progress)
        return contest.run(self.options.turns, self.options.tokens)

    def findings(self, runs: Sequence[Run], console: Console) -> list[RenderableType]:
        phases = range(len(runs[0].phases))
        adaptive = [run for run in runs if run.contender.adaptive]
        by_kind = [phases[index :: len(QUESTIONS)] for index in range(len(QUESTIONS))]
        return [
            speed_table(runs, by_kind, decimals=1),
            family_table("Tokens per round (accept length)", runs, lambda results: f"{accept_length(results):.2f}"),
            family_table("Draft steps per round, average", runs, lambda results: f"{mean_steps(results):.1f}"),
            *(timeline(replace(run, phases=run.phases[: len(QUESTIONS)]), console) for run in adaptive),
            who_was_fastest(runs),
            f"{SPEED_NOTE} The contenders took turns at each question; the depth over time is from the first turn. "
            "The ratios hold for this machine only: rounds cost different amounts on a GPU.",
        ]

    def use(self, url: str) -> str:
        return f"talk to it:  sglang-adaptive chat --url {url}"
