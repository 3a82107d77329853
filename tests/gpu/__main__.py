"""Run every test that needs a GPU, in a given time: ``make test-gpu``.

Tests run in parts, the longest first: a file, what a file tests on one backend, or all files without servers.
Each part has its own pytest process, and several run side by side. A part that takes too long is ended with every
process that it started, and its remaining tests run later. The results file says of each test: passed, failed, with the
last lines, or not run, with the reason. Tests that passed at this commit according to that file are not run again, so
that another command continues.
The exit code is 0 if every test has passed at this commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.results import BadResult, Report, gpu, read
from sglang_adaptive.lab.models.smollm2 import draft_folder, target_folder
from tests.gpu.recording import FAILED, FILE, PASSED, last

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu-tests.json"
SCHEMA = "gpu-tests-1"
NOT_RUN = "not run"

KERNELS = "kernels"
FIRST = (
    *("test_dflash", "test_block_verification", "test_same_drafts-fa3", KERNELS, "test_exact-fa3"),
    *("test_same_drafts-flashinfer", "test_flashinfer", "test_exact-flashinfer", "test_audit_faults"),
    *("test_plan_stream", "test_apart", "test_exact-triton", "test_standalone", "test_hicache", "test_lookups"),
    *("test_draft_vocabulary", "test_memory_saver"),
)
"""Parts, or files with all of their parts, in the order in which they begin; others follow.

The longest come first, so that none is left alone at the end, and those that start one server last. Those that start
three servers are apart, because three take all of the host's cores.
"""

WITHOUT_SERVERS = ("test_kernels", "test_chain_kernel", "test_fa3")
"""Files that are one part, because each takes longer to import SGLang than to test."""

APART = ("fa3", "triton", "flashinfer", "DFLASH", "DFlash2")
"""Parameters whose tests share no server with those of another: each is a part of its own."""

END_SECONDS, GRACE_SECONDS = 20.0, 10.0
"""Seconds of the budget that are kept for ending tests; seconds that pytest gets to stop its servers."""

LEAST_SECONDS = 15.0
"""No part begins with less time than this left."""

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Part:
    """Tests that run in one process."""

    name: str
    tests: tuple[str, ...]


def parts(tests: Iterable[str]) -> list[Part]:
    """Return the parts of *tests*, pytest's ids, in the order in which they begin."""
    found: dict[str, list[str]] = {}
    for test in tests:
        path, _, rest = test.partition("::")
        words = re.findall(r"\w+", rest.partition("[")[2])
        variant, stem = next((word for word in words if word in APART), None), Path(path).stem
        name = KERNELS if stem in WITHOUT_SERVERS else stem + (f"-{variant}" if variant else "")
        found.setdefault(name, []).append(test)

    def rank(name: str) -> int:
        known = (FIRST.index(one) for one in (name, name.partition("-")[0]) if one in FIRST)
        return next(known, len(FIRST))

    return [Part(name, tuple(found[name])) for name in sorted(found, key=rank)]


def judged(
    part: Part, events: Sequence[Mapping[str, Any]], why: str, over: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each test that ended, or that ran when its process ended: *why* says why that ended.

    If the budget was *over*, the last test that began has not run, unless it passed: ending it may make it fail.
    """
    began = [event["began"] for event in events if "began" in event]
    ended = {event["ended"]: event for event in events if "ended" in event}
    for test in part.tests:
        if over and began and test == began[-1] and ended.get(test, {}).get("outcome") != PASSED:
            yield test, {"outcome": NOT_RUN, "lines": [why]}
        elif test in ended:
            told = {key: ended[test][key] for key in ("outcome", "seconds", "lines", "figures") if key in ended[test]}
            yield test, {**told, "outcome": told["outcome"] if told["outcome"] in (PASSED, FAILED) else NOT_RUN}
        elif test in began:
            yield test, {"outcome": FAILED, "lines": [why]}


class Run:
    """The parts of a command, and the results."""

    def __init__(self, given: argparse.Namespace, argv: Sequence[str]) -> None:
        self.given, self.end = given, time.monotonic() + given.budget - END_SECONDS
        given.work.mkdir(parents=True, exist_ok=True)
        self.report = Report(given.results, "tests.gpu", argv, schema=SCHEMA, tests={})
        source = self.report.content["provenance"]
        self.commit = source["commit"]
        self.about = {"commit": self.commit, "on": _name(gpu()), "date": source["date"][:10]}
        self.tests: dict[str, dict[str, Any]] = {}
        self._number = 0

    def collect(self) -> list[Part]:
        """Find the tests and those that have passed; return the parts of the others."""
        earlier: dict[str, Any] = {}
        if self.given.results.exists():
            earlier = read(self.given.results).get("tests", {})
        paths = [str(path.resolve()) for path in self.given.paths]
        events, code, console = self._pytest("collect", ["--collect-only", "-q", *paths], self.end)
        for event in events:
            if "collected" in event:
                test = event["collected"]
                self.tests[test] = earlier.get(test) or {"outcome": NOT_RUN, "lines": ["the budget ended before"]}
            elif "broken" in event:
                self.report.note(f"{event['broken']} cannot be imported: {' '.join(event['lines'][-3:])}")
                self.tests[event["broken"]] = {"outcome": FAILED, "lines": event["lines"], **self.about}
        if not self.tests:
            raise BadResult(f"{' '.join(paths)}: pytest found no test (exit code {code}): {' '.join(last(console, 3))}")
        self.write()
        return parts(test for test in self.tests if "::" in test and not self.has_passed(test))

    def has_passed(self, test: str) -> bool:
        """Return whether a test has passed at this commit, which must be known and without later changes."""
        commit = self.commit or "-dirty"
        return not commit.endswith("-dirty") and self._here(test) and self.tests[test]["outcome"] == PASSED

    def counts(self) -> Counter[str]:
        """Return how many tests have which outcome at this commit."""
        return Counter(self.tests[test]["outcome"] if self._here(test) else NOT_RUN for test in self.tests)

    def _here(self, test: str) -> bool:
        return bool(self.tests[test].get("commit") == self.commit)

    def write(self) -> None:
        found = self.counts()
        self.report.add(**{name: found[name] for name in (PASSED, FAILED, NOT_RUN)}, tests=self.tests)

    def work(self, part: Part) -> None:
        """Run a part, and what a process that ended leaves of it in another one."""
        with self.report.noting(part.name):
            while part.tests and time.monotonic() < self.end - LEAST_SECONDS:
                part = self._run(part)

    def _run(self, part: Part) -> Part:
        """Run a part in one process; return what is left of it."""
        begin = time.monotonic()
        until = min(begin + self.given.limit, self.end)
        events, code, console = self._pytest(part.name, ["-q", *part.tests], until)
        seconds = time.monotonic() - begin
        over = code is None and time.monotonic() >= self.end
        why = f"its process ended with exit code {code}" if code is not None else f"its process ran for {seconds:.0f} s"
        unfinished = f"{why}; the last lines of the part's console follow"
        if over:
            unfinished = f"the budget ended while it ran, after {seconds:.0f} s"
        found = dict(judged(part, events, unfinished, over))
        for told in found.values():
            if told["outcome"] == FAILED and "seconds" not in told:
                told["lines"] += last(console)
        rest = tuple(test for test in part.tests if test not in found)
        if rest and not found and not over:
            found = {test: {"outcome": FAILED, "lines": [why, *last(console)]} for test in rest}
            rest = ()
        with self.report.lock:
            for test, told in found.items():
                # What did not run leaves an earlier result, whose commit it names, as it is.
                if told["outcome"] != NOT_RUN or self.tests[test]["outcome"] == NOT_RUN:
                    self.tests[test] = {**told, **self.about}
            self.write()
        told = Counter(each["outcome"] for each in found.values())
        parts_told = [f"{told[name]} {name}" for name in (PASSED, FAILED, NOT_RUN) if told[name]]
        self.report.say(f"{part.name}: {', '.join(parts_told) or 'nothing'}, {seconds:.0f} s")
        return Part(f"{part.name}-rest", () if over else rest)

    def _pytest(self, name: str, words: Sequence[str], until: float) -> tuple[list[dict[str, Any]], int | None, str]:
        """Run pytest; return the recorded events, the exit code, None if it was ended at *until*, and its console."""
        with self.report.lock:
            self._number += 1
            folder = self.given.work / f"{self._number:02}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        record, console = folder / "record.jsonl", folder / "console.txt"
        record.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "pytest", "-p", "tests.gpu.recording", "-p", "no:cacheprovider"),
            *(f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}", f"--basetemp={folder / 'tmp'}", *words),
        ]
        with console.open("wb") as output:
            child = subprocess.Popen(
                # Whatever the shell says, bytecode is kept: without it each process of a server imports for 30 s.
                command, cwd=ROOT, env={**os.environ, FILE: str(record), "PYTHONDONTWRITEBYTECODE": ""},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        started: set[psutil.Process] = set()
        try:
            while child.poll() is None and time.monotonic() < min(until, self.end):
                _add_children(child.pid, started)
                time.sleep(POLL_SECONDS)
            code = child.poll()
        finally:
            _end(child, started)
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        events = []
        for line in lines:
            with suppress(ValueError):  # the last line of a process that was killed
                events.append(json.loads(line))
        return events, code, console.read_text(errors="replace")

    def stop(self, *_: object) -> None:
        """End everything that runs; the rest is not run."""
        self.end = 0.0


def _add_children(pid: int, started: set[psutil.Process]) -> None:
    with suppress(psutil.Error):
        started.update(psutil.Process(pid).children(recursive=True))


def _end(child: subprocess.Popen[bytes], started: set[psutil.Process]) -> None:
    """End pytest, which then stops its servers, and after GRACE_SECONDS each process that it *started*."""
    _add_children(child.pid, started)
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    if child.poll() is None:
        child.kill()
        child.wait()
    for one in started:
        with suppress(psutil.Error):
            if one.is_running():
                one.kill()
    psutil.wait_procs(started, GRACE_SECONDS)


def _name(told: str | None) -> str | None:
    """Return the GPU's name of what `results.gpu` returns."""
    return told.splitlines()[0].partition(",")[0] if told else None


def get_smollm2(work: Path) -> subprocess.Popen[bytes] | None:
    """Start getting the model that some tests need, if it is missing; WORK/smollm2.txt has what that says."""
    if target_folder().is_dir() and draft_folder().is_dir():
        return None
    with (work / "smollm2.txt").open("wb") as output:
        words = [sys.executable, "-m", "sglang_adaptive.cli", "models", "get", "smollm2"]
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    jobs = max(1, len(os.sched_getaffinity(0)) // 4)
    add("paths", nargs="*", type=Path, metavar="FILE", default=[Path(__file__).parent], help="default: tests/gpu")
    add("--budget", type=float, default=1800.0, metavar="SECONDS", help="for everything (default %(default)g)")
    add("--limit", type=float, default=500.0, metavar="SECONDS", help="for a part (default %(default)g)")
    add("--jobs", type=int, default=jobs, help="parts at once, each with up to three servers (default %(default)s)")
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="default: benchmarks/results/gpu-tests.json")
    work = Path(tempfile.gettempdir(), "gpu-tests")
    add("--work", type=Path, default=work, metavar="DIR", help="consoles and servers' logs (default %(default)s)")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    given = parser().parse_args(argv)
    try:
        run = Run(given, argv)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, run.stop)
        getting = get_smollm2(given.work)
        left = run.collect()
    except BadResult as error:
        print(f"test-gpu: {error}", file=sys.stderr)
        return 2
    if getting is not None and getting.wait():
        run.report.note(f"without SmolLM2: {' '.join(last((given.work / 'smollm2.txt').read_text(), 2))}")
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run.work, left))
    run.write()
    found = run.counts()
    for test, told in run.tests.items():
        if told["outcome"] == FAILED:
            run.report.say("\n".join([f"failed: {test}", *(f"    {line}" for line in told.get("lines", ()))]))
    where = run.about["on"] or "no GPU"
    counted = ", ".join(f"{found[name]} {name}" for name in (PASSED, FAILED, NOT_RUN))
    run.report.say(f"{where}, commit {run.commit}: {counted}; {given.results}")
    return int(found[PASSED] < len(run.tests))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
