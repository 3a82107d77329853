"""The demo with the tiny pair: servers, measurements, tables and what they show."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
from rich.console import Console, RenderableType
from rich.text import Text

from sglang_adaptive import provenance
from sglang_adaptive.command_line import DONE, PROBLEM, StopSignals
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.demo.drawing import (
    SPEED_NOTE,
    depth_table,
    speed_table,
    timeline,
    where_it_went,
    who_was_fastest,
)
from sglang_adaptive.lab.demo.measure import measure_all
from sglang_adaptive.lab.demo.results import SEVERAL, Run, failures, mismatches, workload
from sglang_adaptive.lab.demo.servers import TITLES, Fleet, launches
from sglang_adaptive.lab.demo.terminal import Progress, console_of


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo with the tiny pair; a subclass for another pair overrides what `run` calls."""

    options: argparse.Namespace
    folder: Path
    """Folder for the servers' configurations, logs and caches; removed unless still needed."""

    progress: Progress

    gigabytes_a_server: ClassVar = 2.4
    """Measured as proportional set size of three warm servers: 6.8 GiB together, mostly of PyTorch."""

    moves: ClassVar = True
    """Whether the depth has to move."""

    @property
    def policies(self) -> list[str]:
        """Those to show, in table order."""
        return [name for name in TITLES if name in self.options.policy]

    def run(self) -> int:
        """Run the demo; returns the exit code."""
        console, wanted = console_of(sys.stdout), self.gigabytes_a_server * self.servers
        warned = warnings(self.policies, os.getloadavg()[0], psutil.virtual_memory().available / 2**30, wanted)
        _print(console, [*self.introduction(wanted), *warned])
        runs, kept = self._measure()
        self.progress.done("stopped the other servers" if kept else "stopped the servers")
        wrong = [mismatch for run in runs[1:] for mismatch in mismatches(runs[0], run)]
        failed = failures(runs, wrong, moves=self.moves)
        console.print()
        _print(console, self.findings(runs, console))
        for line in failed:
            console.print(Text.assemble(("FAILED: ", "bold"), line))
        if not failed:
            console.print(_lossless(runs[0]))
        if kept:
            print("\n" + kept)
        elif failed:
            print(f"The logs are in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        return PROBLEM if failed else DONE

    def _measure(self) -> tuple[list[Run], str]:
        """Start the servers, measure, stop them. With --keep, leave the last policy's running; return how to use it."""
        with StopSignals() as signals, Fleet(self.launches(), self.folder, signals, self.progress) as fleet:
            fleet.boot()
            runs = self.measured(fleet)
            if not self.options.keep:
                return runs, ""
            key = self.policies[-1]
            url = fleet[key].url
            return runs, self.kept(url, fleet.keep(key), TITLES[key])

    @property
    def servers(self) -> int:
        """How many servers are started."""
        return len(self.policies) + 1

    def introduction(self, gigabytes: float) -> list[str]:
        """Return the paragraphs for a reader who is new to the project; the servers take *gigabytes*."""
        sglang = provenance.versions("sglang")["sglang"]
        return [
            "In speculative decoding, a small model drafts a few tokens and the large model verifies them in one "
            "round. The best number of draft tokens (the depth) depends on the text: long drafts pay off on easy "
            "text and are wasted on hard text. sglang-adaptive chooses the depth while the server runs.",
            f"This demo starts {self.servers} real SGLang {sglang} servers on this machine's CPU, with a "
            "tiny byte-level Llama and its EAGLE-3 draft. Each generates the same text: easy, hard, easy, "
            f"first one request at a time, then {SEVERAL}. It takes about three minutes on two cores and "
            f"{gigabytes:.0f} GB of memory. Ctrl-C stops the demo and its servers.",
        ]

    def launches(self) -> Mapping[str, Sequence[str]]:
        """Return the arguments of the servers to start."""
        plain = ("--model-path", models.target_path(), "--served-model-name", "tiny")
        return launches(plain, models.draft_path(), self.policies, self.folder)

    def measured(self, fleet: Fleet) -> list[Run]:
        """Return the runs, the one without speculation first."""
        phases = workload(models.prompts, self.options.tokens)
        return measure_all(fleet, self.policies, phases, models.prompts("mixed"), self.progress)

    def findings(self, runs: Sequence[Run], console: Console) -> list[RenderableType]:
        """Return tables, timelines and the sentences about them."""
        adaptive = [run for run in runs if run.contender.adaptive]
        phases = [[index] for index in range(len(runs[0].phases))]
        return [
            speed_table(runs, phases, decimals=0),
            depth_table(runs),
            f"{SPEED_NOTE} Accept length (easy, hard, all): tokens per request from one verify round, at least 1. "
            "Static N: the server of the first adaptive row with adaptive_force_steps set to N, so backends and "
            "buffers are the same. Every server was warmed up at each depth first, and only one was measured at a "
            "time.",
            *(timeline(run, console) for run in adaptive),
            "\n".join([*map(where_it_went, adaptive), who_was_fastest(runs)]),
            "These numbers show behavior, not speed: the CPU engine is for trying things out and for tests, rounds "
            "cost different amounts on a GPU, and other load on this machine affects the tokens per second.",
        ]

    def kept(self, url: str, pid: int, title: str) -> str:
        """Return how to use and how to stop the server that was left running."""
        lines = (
            f"The {title} server is still running at {url}; its log and configuration are in {self.folder}",
            f"  {self.use(url)}",
            f"  watch it:    sglang-adaptive watch --url {url}, or {url}/adaptive in a browser",
            f"  stop it:     kill {pid}",
        )
        return "\n".join(lines)

    def use(self, url: str) -> str:
        """Return how to send the server a request."""
        ask = '{"text": "4210 olive caps\\n", "sampling_params": {"temperature": 0, "max_new_tokens": 64}}'
        return f"ask it:      curl -s {url}/generate -H 'Content-Type: application/json' -d '{ask}'"


def _print(console: Console, parts: Sequence[RenderableType]) -> None:
    for part in parts:
        console.print(part)
        console.print()


def _lossless(plain: Run) -> str:
    requests = sum(len(result.outputs) for result in plain.phases)
    tokens = sum(result.tokens for result in plain.phases)
    return (
        f"Lossless: in every run, all {requests} requests ({tokens} tokens) match the run without speculation token "
        "for token."
    )


def warnings(policies: Sequence[str], load: float, gigabytes: float, wanted: float) -> list[str]:
    """Return warnings about the machine's load average, and about free *gigabytes* below *wanted*."""
    remarks = []
    cores = provenance.cpu_cores()
    if load > cores:
        remarks.append(
            f"This machine is busy (load {load:.1f} on {cores} cores): expect a longer run and noisier numbers."
        )
    if gigabytes < wanted:
        fewer = "; --policy ema needs less" if len(policies) > 1 else ""
        remarks.append(f"Only {gigabytes:.1f} GB of memory is free, which may not be enough{fewer}.")
    return remarks
