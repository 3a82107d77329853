"""Asks the contenders in turns: each answers the same question before the next one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_adaptive.lab.chat.conversation import drafting
from sglang_adaptive.lab.demo.fleet import Fleet
from sglang_adaptive.lab.demo.measure import adaptive_state, force_steps
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.real_text.answer import measure_answer
from sglang_adaptive.lab.demo.real_text.questions import WARM_UP, Template, phases
from sglang_adaptive.lab.demo.real_text.screen import AnswerScreen
from sglang_adaptive.lab.demo.results import Contender, PhaseResult, Run, tokens_per_second
from sglang_adaptive.lab.demo.run import blaming
from sglang_adaptive.lab.demo.servers import PLAIN, STATIC_DEPTHS, TITLES
from sglang_adaptive.lab.demo.style import Style
from sglang_adaptive.lab.demo.workload import Phase

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
