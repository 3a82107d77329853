"""``sglang-adaptive demo --pair smollm2``: the demo with the contest as its measurement."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sglang_adaptive import provenance
from sglang_adaptive.lab.demo.demo import Demo, Kept
from sglang_adaptive.lab.demo.drawing import Style
from sglang_adaptive.lab.demo.real_text import findings
from sglang_adaptive.lab.demo.real_text.contest import HELD, QUESTIONS, Contest, Template, entrants
from sglang_adaptive.lab.demo.results import DemoError, Mismatch, Run
from sglang_adaptive.lab.demo.servers import CONFIGS, PLAIN, TITLES, Fleet, ServerSpec
from sglang_adaptive.lab.demo.words import available_gigabytes, warnings
from sglang_adaptive.lab.models.folders import ModelError
from sglang_adaptive.lab.models.smollm2 import Pair, ready_pair
from sglang_adaptive.signals import StopSignals

GIGABYTES_A_SERVER = 2.6


class RealTextDemo(Demo):
    """SmolLM2 without speculation, at fixed steps and adaptive, on the same questions in turns."""

    def introduction(self, style: Style, load: float) -> str:
        servers = len(self.policies) + 2
        gigabytes = GIGABYTES_A_SERVER * servers
        sglang = provenance.versions("sglang")["sglang"]
        often = "once" if self.options.turns == 1 else f"{self.options.turns} times"
        text = (
            f"This demo starts {servers} real SGLang {sglang} servers on this machine's CPU with "
            "SmolLM2-135M-Instruct and its EAGLE-3 draft: without speculation, at static depths, and adaptive. Each "
            f"answers the same {len(QUESTIONS)} questions, {often}, one server at a time. It takes about "
            f"six minutes on two idle cores, and {gigabytes:.0f} GB of memory. Ctrl-C stops it all."
        )
        beside = (
            "Beside each line of the adaptive server's answer stand the draft steps of its rounds, and the tokens that "
            "a round brought."
        )
        return "\n\n".join(
            map(style.prose, [text, beside, *warnings(self.policies, load, available_gigabytes(), gigabytes)])
        )

    def measure(self) -> tuple[list[Run], Kept | None]:
        pair = self._pair()
        self.progress.now("loading the tokenizer")
        template = Template(pair.target)
        with StopSignals() as signals, Fleet(self._specs(pair), self.folder, signals, self.progress) as fleet:
            fleet.boot()
            contest = Contest(fleet, entrants(self.policies), template, Style.of(sys.stdout), self.progress)
            runs = contest.run(self.options.turns, self.options.tokens)
            if not self.options.keep:
                return runs, None
            key = self.policies[-1]
            url = fleet[key].url
            return runs, Kept(url, fleet.keep(key), key)

    def failures(self, runs: Sequence[Run], wrong: Sequence[Mismatch]) -> list[str]:
        return findings.failures(runs, wrong)

    def findings(self, runs: Sequence[Run], style: Style) -> str:
        return findings.findings(runs, style)

    def kept(self, kept: Kept) -> str:
        return "\n".join(
            [
                f"The {TITLES[kept.key]} server is still running at {kept.url}; its log is in {self.folder}",
                f"  talk to it:  sglang-adaptive chat --url {kept.url}",
                f"  watch it:    sglang-adaptive watch --url {kept.url}, or {kept.url}/adaptive in a browser",
                f"  stop it:     kill {kept.pid}",
            ]
        )

    def _pair(self) -> Pair:
        from sglang_adaptive.lab.models.command import progress

        try:
            with progress() as tick:
                return ready_pair(tick)
        except ModelError as error:
            raise DemoError(str(error)) from error

    def _specs(self, pair: Pair) -> list[ServerSpec]:
        specs = [ServerSpec(PLAIN, "no speculation", pair.plain())]
        for key, policy, title in [(HELD, "throughput", "static depths"), *((p, p, TITLES[p]) for p in self.policies)]:
            config = self.folder / f"{key}.json"
            config.write_text(json.dumps(CONFIGS[policy]) + "\n", encoding="utf-8")
            specs.append(ServerSpec(key, title, pair.adaptive(config)))
        return specs
