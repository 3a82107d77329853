"""The demo with the tiny pair: servers, measurements, tables and what they show."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive.lab.demo import report, words
from sglang_adaptive.lab.demo.drawing import Style
from sglang_adaptive.lab.demo.measure import measure_all
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.results import Mismatch, Run, mismatches, workload
from sglang_adaptive.lab.demo.servers import TITLES, Fleet, server_specs
from sglang_adaptive.lab.demo.words import failures
from sglang_adaptive.signals import StopSignals

FAILED = 1
"""Exit code of a demo that did not show what it should."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A server that was left running: its address, the process to end, and its policy."""

    url: str
    pid: int
    key: str


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo with the tiny pair; subclasses override parts for other pairs."""

    options: argparse.Namespace
    argv: list[str]
    folder: Path
    """Folder of the servers' configurations, logs and caches; removed unless still needed."""

    progress: Progress

    @property
    def policies(self) -> list[str]:
        """Those to show, in the order of the tables."""
        return [name for name in TITLES if name in self.options.policy]

    def run(self) -> int:
        style = Style.of(sys.stdout)
        load = os.getloadavg()[0]
        print(self.introduction(style, load), end="\n\n", flush=True)
        runs, kept = self.measure()
        self.progress.done("servers stopped" if kept is None else "the other servers stopped")
        wrong = [mismatch for run in runs[1:] for mismatch in mismatches(runs[0], run)]
        failed = self.failures(runs, wrong)
        seconds = self.progress.seconds
        written = self._write(report.build(runs, wrong, failed, seconds=seconds, load=load, argv=self.argv))
        print("\n" + self.findings(runs, style), end="\n\n")
        print(_outcome(runs, failed, style))
        if kept is not None:
            print("\n" + self.kept(kept))
        elif failed:
            print(f"The logs are in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        return FAILED if failed or not written else 0

    def measure(self) -> tuple[list[Run], Kept | None]:
        """Start the servers, measure and stop them; with --keep, leave the last policy's server running."""
        from sglang_adaptive.lab.cpu_engine import models

        phases = workload(models.prompts, self.options.tokens)
        specs = server_specs(self.policies, models.target_path(), models.draft_path(), self.folder)
        with StopSignals() as signals, Fleet(specs, self.folder, signals, self.progress) as fleet:
            fleet.boot()
            runs = measure_all(fleet, self.policies, phases, models.prompts("mixed"), self.progress)
            if not self.options.keep:
                return runs, None
            key = self.policies[-1]
            url = fleet[key].url
            return runs, Kept(url, fleet.keep(key), key)

    def introduction(self, style: Style, load: float) -> str:
        """Return the introduction; *load* is the machine's load average."""
        return words.introduction(style, self.policies, load)

    def failures(self, runs: Sequence[Run], wrong: Sequence[Mismatch]) -> list[str]:
        """Return one line for each failure; *wrong* are the requests whose tokens differ."""
        return failures(runs, wrong)

    def findings(self, runs: Sequence[Run], style: Style) -> str:
        """Return the tables and the sentences about them."""
        return words.all_findings(runs, style)

    def kept(self, kept: Kept) -> str:
        """Return how to use and how to stop the server that was left running."""
        return words.kept(kept.url, kept.pid, TITLES[kept.key], self.folder)

    def _write(self, content: dict[str, object]) -> bool:
        path: Path | None = self.options.json
        if path is None:
            return True
        try:
            report.write(path, content)
        except OSError as error:
            print(f"sglang-adaptive demo: --json {path}: cannot be written ({error.strerror})", file=sys.stderr)
            return False
        self.progress.done(f"wrote {path}")
        return True


def _outcome(runs: Sequence[Run], failed: Sequence[str], style: Style) -> str:
    if failed:
        return "\n".join(style.bold("FAILED: ") + line for line in failed)
    requests = sum(len(result.outputs) for result in runs[0].phases)
    tokens = sum(result.tokens for result in runs[0].phases)
    return style.prose(
        f"Lossless: in every run, all {requests} requests ({tokens} tokens) came out token for token as without "
        "speculation."
    )
