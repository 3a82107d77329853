"""The three phases: their servers, their order of work, and their verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.architectures.shapes import VOCABULARY
from benchmarks.architectures.texts import NEW_TOKENS
from benchmarks.attention_dp.served import agreement, equality, rates
from benchmarks.attention_dp.served.report import Report
from benchmarks.attention_dp.served.round_log import compare, logs
from benchmarks.attention_dp.served.servers import DEPTHS, Place, described, states
from benchmarks.attention_dp.served.tiny import TARGET
from benchmarks.server.results import REAL, SIMULATED

NAMES = ("equality", "agreement", "rates")
SERVERS = {"equality": ("adaptive", "reference"), "agreement": ("liar",), "rates": ("rated", "none")}
HELD = (0, 1, 2, 3, 5, 7)
SETUP_SECONDS = 3.0
"""Until all requests of a load decode."""
WRONG_SHARE = 0.05
"""Share of unlikely tokens by which a run may exceed the reference; a wrong state makes far more."""


class Phases:
    """One run's phases; each writes to the report as it goes."""

    def __init__(self, place: Place, report: Report, given: argparse.Namespace, deadline: float) -> None:
        self.place, self.report, self.given, self.deadline = place, report, given, deadline

    def equality(self) -> None:
        """Collect the adaptive server's texts, then judge them by the reference."""
        name, place = "equality", self.place
        vocabulary = TARGET["vocab_size"] if place.cpu else VOCABULARY
        self.report.add(name, acceptance=REAL, new_tokens=NEW_TOKENS, layouts=list(equality.LAYOUTS))
        with place.up("adaptive", self.deadline) as server:
            self.report.add(name, adaptive_before=described(server, place.folder))
            runs = equality.collect(server, vocabulary, DEPTHS, lambda run: self._heard(name, run))
            found = compare(logs(place.log("adaptive")))
            self.report.add(name, agreement=found, adaptive=states(server))
        with place.up("reference", self.deadline) as reference:
            judge = equality.Judge(reference, vocabulary)
            self.report.add(name, reference=judge.about)
            verdicts = []
            for run in runs:
                verdicts.append(judge.judge(run))
                self.report.add(name, runs=verdicts)
        different = [run for run in verdicts if run["different"]]
        texts = "well" if not different else f"{len(different)} runs with different texts"
        self.report.add(name, verdict=texts if found["identical"] else "the ranks ran different steps")

    def agreement(self) -> None:
        """Drive the server whose second rank's clock lies."""
        name, place = "agreement", self.place
        self.report.add(name, acceptance=SIMULATED)
        with place.up("liar", self.deadline) as server:
            self.report.add(name, server=described(server, place.folder))
            last: dict[str, Any] = {}

            def keep(found: dict[str, Any]) -> None:
                last.clear()
                last.update(found)
                self.report.add(name, **found)

            log, rounds = place.log("liar"), self.given.rounds
            agreement.drive(server, log, rounds, self.deadline, keep, lambda: place.stacks(server))
            self.report.add(name, ranks=states(server))
        well = last["identical"] and not last["errors"] and not any(last["degraded"])
        enough = last["rounds"] >= self.given.rounds
        self.report.add(name, verdict=("well" if enough else "out of time") if well else "not alike")

    def rates(self) -> None:
        """Measure the adaptive server's rates, then those of the one without speculation."""
        name, place = "rates", self.place
        times = rates.Times(self.given.window)
        if place.cpu:
            times = replace(times, phase=4.0, tokens=600)
        constant, changing = rates.CONSTANT[: self.given.scenes], rates.CHANGING[: self.given.scenes]
        rows: list[dict[str, Any]] = []

        def keep(row: dict[str, Any]) -> None:
            rows.append(row)
            self.report.add(name, rows=rows, ratios=rates.ratios(rows))
            self.report.say(f"{name}: {row['scene']}, {row['contender']}: {row['tokens_per_second']:.0f} tokens/s")

        self.report.add(name, acceptance=SIMULATED)
        with place.up("rated", self.deadline) as server:
            self.report.add(name, server=described(server, place.folder))
            # Without speculation a scene takes a window, and the changing load one turn of it.
            reserve = len(constant) * (times.window + SETUP_SECONDS) + len(changing) * times.phase + SETUP_SECONDS
            rated = rates.Rated(server, times, self.deadline - reserve)
            self._in_turns(rated, constant, changing, keep, rows)
            found = compare(logs(place.log("rated")))
            self.report.add(name, agreement=found, ranks=states(server))
        with place.up("none", self.deadline) as server:
            rated = rates.Rated(server, times, self.deadline)
            for _ in range(2):
                rated.constant(constant, ["none"], keep)
                rated.changing(changing, ["none"], keep)
        self.report.add(name, verdict="well" if found["identical"] else "the ranks ran different steps")

    def _in_turns(
        self,
        rated: rates.Rated,
        constant: Sequence[rates.Scene],
        changing: Sequence[rates.Scene],
        keep: rates.Keep,
        rows: Sequence[dict[str, Any]],
    ) -> None:
        """Measure everything once, then again the other way round; of the changing load then the best alone."""
        static = [f"{rates.HELD}{steps}" for steps in HELD]
        rated.constant(constant, [rates.POLICY, *static], keep)
        rated.changing(changing, [rates.POLICY, *static], keep)
        rated.constant(constant, [*reversed(static), rates.POLICY], keep)
        rated.changing(changing, [*rates.best_held(rows, rates.CHANGE, 2), rates.POLICY], keep)

    def _heard(self, name: str, run: dict[str, Any]) -> None:
        self.report.say(f"{name}: {run['how']}, {run['layout']}")
