"""Hold the throughput policy to its gates on this host's GPUs: `make bench-gpu`. See benchmarks/README.md.

Starts a server per GPU and model, drives every scene at its batch sizes, which are spread over the GPUs, and prints
each gate beside what the policy reached: its tokens/s over those of the best held number of steps, summed over turns,
with the standard error. Exits with 1 if a gate is missed or was not measured. Servers that `--start` left running in
the same `--work` are used.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any

from benchmarks import served
from benchmarks.harness import start
from benchmarks.harness.machine import cores_of, every_core_busy, gpus_of_host, locked
from benchmarks.harness.results import Report, command_parser, read, write
from benchmarks.harness.start import DEPTHS, Server
from benchmarks.harness.turns import behind
from benchmarks.served import OURS, REPLAY, SMOLLM2
from sglang_adaptive.policy.profile import CostProfile, loads_profile
from sglang_adaptive.runtime.profile_store import ProfileStore

SCHEMA = "gates-1"
DENSE, EXPERTS, LATENT_EXPERTS = "llama8b", "qwen3-30b-a3b", "moonlight"
SPARSE, COMPRESSED = "deepseek-v3.2-cut", "deepseek-v4-flash-cut"
WRONG, BUSY = "wrong", "busy"
_REPLAYED = ("--context", "300", "--requests", "1:4,4:16,16:64,64:224")


@dataclass(frozen=True)
class Scene:
    """What is driven, and what the policy has to reach at each batch size."""

    server: str
    batches: Sequence[int]
    gate: float
    """The least tokens/s of the policy over those of the best held steps, both summed over turns."""
    turn: float | None = None
    """The least of a single turn; None for any."""
    settling: int = 0
    """First turns that may be below it."""
    weight: float = 1.0
    """Share of the time per batch size, relative to the other scenes."""
    options: Sequence[str] = _REPLAYED
    """Of ``benchmarks.served drive``."""
    asked: bool = False
    """Whether it runs only where --scenes names it, because the ten minutes do not hold it."""


_DENSE = (1, 4, 16, 64)
SCENES: dict[str, Scene] = {
    "replay": Scene(DENSE, _DENSE, 0.99, 0.97),
    # Round times that are wrong by up to a factor of 2 in single cells, taken over as a saved profile.
    WRONG: Scene(DENSE, _DENSE, 0.98, 0.96, settling=1),
    # As many spinning processes as the host has cores.
    BUSY: Scene(DENSE, _DENSE, 0.98, 0.96, settling=1, weight=1.3),
    # Prefills of a mixture of experts take long.
    "moe": Scene(EXPERTS, (1, 16, 64), 0.98, weight=1.3, options=("--context", "300", "--requests", "1:2,16:20,64:72")),
    # Its rounds take 1.4 to 4 ms, and a prefill slows those after it: one wave of long requests a pass.
    SMOLLM2: Scene(SMOLLM2, (1, 16, 64), 0.99, options=("--requests", "1:1,16:16,64:64", "--tokens", "448")),
    # A mixture of experts with latent attention and a NextN layer.
    "latent": Scene(LATENT_EXPERTS, _DENSE, 0.98, asked=True),
    # Sparse attention over a latent, and DeepSeek-V4's compressed attention.
    "sparse": Scene(SPARSE, _DENSE, 0.98, asked=True),
    "compressed": Scene(COMPRESSED, _DENSE, 0.98, asked=True),
}
"""The gates, in the order in which a GPU's scenes are driven; the one that needs the whole host comes last."""

USUAL = [name for name, scene in SCENES.items() if not scene.asked]

_SHAPE = ("--kv-tokens", "38000")
SERVERS: dict[str, tuple[str, Sequence[str]]] = {
    DENSE: (REPLAY, ("--pair", DENSE, *_SHAPE)),
    EXPERTS: (REPLAY, ("--pair", EXPERTS, *_SHAPE)),
    **{name: (REPLAY, ("--pair", name, *_SHAPE)) for name in (LATENT_EXPERTS, SPARSE)},
    # A tenth of these tokens is the pool of sliding windows, of which a request takes 256.
    COMPRESSED: (REPLAY, ("--pair", COMPRESSED, "--kv-tokens", "380000")),
    SMOLLM2: (SMOLLM2, ()),
}
"""Servers by name: the scene of ``benchmarks.served`` that starts one, and its options."""

SHARING = ("--mem-fraction-static", "0.95")
"""Several servers share a GPU; each has a fixed number of KV slots."""

LEAST_TURNS = 2
BEHIND = 0.85
"""Share of the best held steps; steps that stay below it in two turns take part in no more, which leaves time for
others."""
SEED, WRONG_SHARE = 1, 0.5
"""Of the wrong profile: its seed, and the share of cells that are wrong."""

START_SHARE = 0.5
"""The largest share of the budget that servers may take to start."""

QUIET_SECONDS = 90.0
"""How long the first scene waits for servers that still compile kernels beside serving."""

COMPILING = "sampling kernels are still being compiled"
COMPILED = ("sampling kernels are compiled and loaded", "no further module is compiled ahead")
END_SECONDS, LATE_SECONDS = 25.0, 25.0
"""Seconds of the budget that are kept for stopping servers; seconds after its time at which a drive is ended."""

SAVE_SECONDS = 15.0
HELD = tuple(f"static-{steps}" for steps in DEPTHS)
Turns = Sequence[Mapping[str, Any]]


# -- arithmetic -----------------------------------------------------------------------------------------------------


def verdict(name: str, size: int, turns: Turns) -> dict[str, Any]:
    """Return the gate of scene *name* at a batch size, what the policy reached in *turns*, and whether that is enough.

    Only turns count that every contender finished which was not left BEHIND; with fewer than LEAST_TURNS the gate is
    not met.
    """
    scene = SCENES[name]
    found: dict[str, Any] = {"scene": name, "batch": size, "gate": scene.gate, "turn_gate": scene.turn, "met": False}
    held = sorted({*HELD} - behind(turns, HELD, BEHIND))
    whole = [turn["passes"] for turn in turns if {OURS, *held} <= set(turn["passes"])]
    found["turns"] = len(whole)
    if len(whole) < LEAST_TURNS:
        return found
    sums = {one: sum(passes[one]["rate"] for passes in whole) for one in (OURS, *held)}
    best = max(held, key=lambda one: sums[one])
    shares = [passes[OURS]["rate"] / passes[best]["rate"] for passes in whole]
    reached, worst = sums[OURS] / sums[best], min(shares[scene.settling :])
    figures = {"best": best, "reached": reached, "error": stdev(shares) / math.sqrt(len(shares))}
    chosen = sum(map(chosen_rate, whole)) / sum(passes[best]["accept"] / passes[best]["round_ms"] for passes in whole)
    met = reached >= scene.gate and (scene.turn is None or worst >= scene.turn)
    return {**found, **figures, "choices": chosen, "worst_turn": worst, "by_turn": shares, "met": met}


def chosen_rate(passes: Mapping[str, Any]) -> float:
    """Return the policy's tokens per request and ms if its rounds had taken as long as those of the held steps.

    Between passes the host's speed may change by a quarter; what the policy chose is compared without that.
    """
    depths = passes[OURS]["depths"]
    times = (passes.get(f"static-{steps}", passes[OURS])["round_ms"] * count for steps, count in depths.items())
    return float(passes[OURS]["accept"] * sum(depths.values()) / sum(times))


def verdicts(scenes: Mapping[str, Sequence[int]], driven: Mapping[str, Mapping[int, Turns]]) -> list[dict[str, Any]]:
    """Return every verdict of *scenes*, batch sizes by name; what was not driven is not met."""
    return [verdict(name, size, driven.get(name, {}).get(size, ())) for name, sizes in scenes.items() for size in sizes]


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of *rows* of `verdicts`."""
    yield (
        f"{'scene':<8} {'batch':>5} {'policy/best':>15} {'gate':>5} {'choices':>7} {'worst turn':>10} {'gate':>5} "
        f"{'turns':>5}  best"
    )
    for row in rows:
        turn = "" if row["turn_gate"] is None else f"{row['turn_gate']:.2f}"
        measured = "best" in row
        reached = f"{row['reached']:.4f} ± {row['error']:.3f}" if measured else "none"
        chosen, worst = (f"{row[key]:.4f}" if measured else "none" for key in ("choices", "worst_turn"))
        best = row["best"] if measured else "not measured"
        yield (
            f"{row['scene']:<8} {row['batch']:>5} {reached:>15} {row['gate']:>5.2f} {chosen:>7} {worst:>10} {turn:>5} "
            f"{row['turns']:>5}  {best}{'' if row['met'] or not measured else ', MISSED'}"
        )


def spread(scenes: Mapping[str, Sequence[int]], gpus: int) -> list[dict[str, list[int]]]:
    """Return each GPU's batch sizes by scene: they alternate, and scenes begin at different GPUs."""
    found: list[dict[str, list[int]]] = [{} for _ in range(gpus)]
    for begin, (name, sizes) in enumerate(scenes.items()):
        for index, size in enumerate(sizes):
            found[(begin + index) % gpus].setdefault(name, []).append(size)
    return found


def spoiled(profile: CostProfile, seed: int = SEED) -> CostProfile:
    """Return *profile* with WRONG_SHARE of its cells multiplied by factors from 1/2 to 2, the same for each seed."""
    cells = []
    for cell in profile.cells:
        draw = random.Random(f"{seed} {cell.batch_size} {cell.steps}")
        wrong = draw.random() < WRONG_SHARE
        cells.append(replace(cell, seconds=cell.seconds * 2.0 ** draw.uniform(-1, 1)) if wrong else cell)
    return replace(profile, cells=tuple(cells))


# -- a run ----------------------------------------------------------------------------------------------------------


class Run:
    """The scenes of a command, its servers, and what they were found to do."""

    def __init__(self, given: argparse.Namespace, argv: Sequence[str], end: float) -> None:
        self.given, self.end = given, end
        self.gpus = gpus_of_host() or ["none"] * (given.host == "cpu")
        if not self.gpus:
            raise SystemExit("gates: nvidia-smi names no GPU; --host cpu rehearses without one")
        wanted = {name: [size for size in SCENES[name].batches if size in given.batches] for name in given.scenes}
        self.scenes = {name: wanted[name] for name in SCENES if wanted.get(name)}
        self.shares = spread(self.scenes, len(self.gpus))
        self.recorded, self.drives = given.work / "recorded", given.work / "drives"
        for folder in (self.recorded, self.drives):
            folder.mkdir(parents=True, exist_ok=True)
        self.driven: dict[str, dict[int, Turns]] = {}
        about = {"gpus": len(self.gpus), "budget_seconds": given.budget}
        gates = {name: asdict(SCENES[name]) for name in self.scenes}
        self.report = Report(
            given.results / "gates.json", "gates", argv, schema=SCHEMA, plan={**about, "scenes": gates}, gates=[],
            scenes={name: {"batches": {}, "servers": {}} for name in self.scenes},
        )  # fmt: skip
        source = self.report.content["provenance"]
        for scene in self.report.content["scenes"].values():  # runs of several commits may be joined
            scene.update(commit=source["commit"], date=source["date"])
        self._children: list[subprocess.Popen[bytes]] = []

    # -- commands

    def command(self, gpu: int, words: Sequence[str], seconds: float, name: str) -> int:
        """Run ``python -m WORDS`` for a GPU, at most *seconds* long, and return its exit code.

        WORK/NAME.txt has its output. Raises TimeoutExpired.
        """
        environment = dict(os.environ)
        if self.given.host != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[gpu]
        bound = cores_of(gpu, len(self.gpus))
        with (self.given.work / f"{name}.txt").open("ab") as output:
            child = subprocess.Popen(
                [*bound, sys.executable, "-u", "-m", *words], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip
        self._children.append(child)
        try:
            return child.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)
            raise
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            self._children.remove(child)

    # -- servers

    def work_of(self, gpu: int, server: str) -> Path:
        """Return the --work of a server's commands of ``benchmarks.served``."""
        return Path(self.given.work / f"gpu{gpu}" / server)

    def folder_of(self, gpu: int, server: str) -> Path:
        """Return the folder with its log and its record."""
        return self.work_of(gpu, server) / SERVERS[server][0]

    def wanted(self) -> list[tuple[int, str]]:
        """Return the GPU and name of every server that the scenes need."""
        return [
            (gpu, server) for gpu, share in enumerate(self.shares)
            for server in dict.fromkeys(SCENES[name].server for name in share)
        ]  # fmt: skip

    def running(self, gpu: int, server: str) -> Server | None:
        """Return a server that runs; None without one."""
        with suppress(ValueError):
            found = start.attach(OURS, self.folder_of(gpu, server))
            return found if found.is_well() else None
        return None

    def start(self) -> None:
        """Start every wanted server that does not run, all together; what fails is noted."""
        left = self.end - time.monotonic()
        until = time.monotonic() + (left if self.given.start else START_SHARE * left)
        with locked(self.given.work / "starting", until):
            wanted = [one for one in self.wanted() if self.running(*one) is None]
            if any(server == SMOLLM2 for _, server in wanted):
                # A server with another name does not wait for the model.
                getting = threading.Thread(target=self._get_smollm2, args=(until,), daemon=True)
                getting.start()
            with ThreadPoolExecutor(max(1, len(wanted))) as pool:
                for gpu, server in wanted:
                    before: Callable[[], None] = getting.join if server == SMOLLM2 else (lambda: None)
                    pool.submit(self._start_one, gpu, server, until, before)
        for gpu, server in self.wanted():
            found = self.running(gpu, server)
            told = "does not run" if found is None else f"is ready, after {found.start_seconds} s"
            self.report.say(f"{server} on GPU {self.gpus[gpu]} {told}")

    def _get_smollm2(self, until: float) -> None:
        with self.report.noting("models get smollm2"):
            if not self._has_smollm2():
                words = ["sglang_adaptive.cli", "models", "get", "smollm2"]
                if self.command(0, words, until - time.monotonic(), "models"):
                    told = (self.given.work / "models.txt").read_text(errors="replace").strip().splitlines()
                    raise RuntimeError(told[-1] if told else "it failed")

    def _has_smollm2(self) -> bool:
        return (start.smollm2_folders(self.given.models)[0] / "config.json").exists()

    def _start_one(self, gpu: int, server: str, until: float, before: Callable[[], None]) -> None:
        scene, options = SERVERS[server]
        with self.report.noting(f"{server} on GPU {self.gpus[gpu]}"):
            before()
            if server == SMOLLM2 and not self._has_smollm2():
                raise RuntimeError("without its model")
            seconds = until - time.monotonic()
            # Each has its own folder of shapes, because two commands would write the same files.
            models = self.given.models if scene == SMOLLM2 else self.work_of(gpu, server) / "models"
            words = ["benchmarks.served", "start", scene, *self._common(gpu, server), "--budget", f"{seconds:.0f}"]
            words += ["--models", str(models), *options, *([] if self.given.no_record else ["--record"])]
            extra = [*([] if self.given.host == "cpu" else SHARING), *self.given.server_arguments]
            words += [f"--server-arguments={' '.join(extra)}"]
            name = f"start-{server}-gpu{gpu}"
            if self.command(gpu, words, seconds + LATE_SECONDS, name):
                raise RuntimeError(f"it did not start; see {name}.txt and {OURS}.log")

    def _common(self, gpu: int, server: str) -> list[str]:
        return ["--work", str(self.work_of(gpu, server)), "--host", self.given.host, "--contenders", OURS]

    def wait_for_kernels(self) -> None:
        """Wait until no server compiles sampling kernels, because that takes cores; note it if one goes on."""
        until = min(time.monotonic() + QUIET_SECONDS, self.end)
        while busy := [one for one in self.wanted() if self._compiles(*one)]:
            if time.monotonic() > until:
                self.report.note(
                    f"{', '.join(server for _, server in busy)}: still compiles kernels while scenes are driven"
                )
                return
            time.sleep(1)

    def _compiles(self, gpu: int, server: str) -> bool:
        found = self.running(gpu, server)
        log = found.log.read_text(errors="replace") if found is not None else ""
        return COMPILING in log and not any(text in log for text in COMPILED)

    # -- scenes

    def drive(self) -> None:
        """Drive the scenes: first those that share the host, then the one that keeps all of its cores busy."""
        quiet = [name for name in self.scenes if name != BUSY]
        for chosen, later in ((quiet, [BUSY]), ([BUSY], [])):
            weight, after = self._longest(chosen), self._longest(later)
            now = time.monotonic()
            if weight == 0 or now > self.end:
                continue
            end = now + (self.end - now) * weight / (weight + after)
            around = every_core_busy(end - now + LATE_SECONDS) if chosen == [BUSY] else nullcontext()
            with around:
                threads = [
                    threading.Thread(target=self._drive_gpu, args=(gpu, chosen, end), daemon=True)
                    for gpu in range(len(self.gpus))
                ]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()

    def _longest(self, names: Sequence[str]) -> float:
        """Return the most that a GPU has to do, in weights."""
        return max(sum(self._weight(gpu, name) for name in names) for gpu in range(len(self.gpus)))

    def _weight(self, gpu: int, name: str) -> float:
        return SCENES[name].weight * len(self.shares[gpu].get(name, ()))

    def _drive_gpu(self, gpu: int, names: Sequence[str], end: float) -> None:
        mine = [name for name in names if self._weight(gpu, name)]
        for index, name in enumerate(mine):
            left = end - time.monotonic()
            seconds = left * self._weight(gpu, name) / sum(self._weight(gpu, one) for one in mine[index:])
            with self.report.noting(f"{name} on GPU {self.gpus[gpu]}"):
                self._drive_scene(gpu, name, time.monotonic() + seconds)

    def _drive_scene(self, gpu: int, name: str, end: float) -> None:
        scene, label, sizes = SCENES[name], f"{name}-gpu{gpu}", self.shares[gpu][name]
        server = self.running(gpu, scene.server)
        if server is None:
            raise RuntimeError(f"{scene.server} does not run")
        described = server.described()
        about: dict[str, Any] = {"batches": sizes, "command": described["command"], "startup": described["startup"]}
        if name == WRONG:
            if not all(self._marker(server, size).exists() for size in sizes):
                third = time.monotonic() + (end - time.monotonic()) / 3
                self._serve(gpu, name, f"{label}-before", sizes, third, ["--turns", "1", "--error", "1000"])
            about["factors"] = plant(server, self.given.no_record)
        self._serve(gpu, name, label, sizes, end, ["--turns", "1000000"])
        found = read(self.drives / f"{label}.json")
        with self.report.lock:
            told = self.report.content["scenes"][name]
            for size, turns in found.get("batches", {}).items():
                self.driven.setdefault(name, {})[int(size)] = turns
            self.report.content["notes"] += [f"{label}: {line}" for line in found["notes"]]
            told["servers"][f"gpu{gpu}"] = about
            rows = verdicts({name: sizes}, self.driven)
            self.report.say("\n".join([f"{label} is driven", *table(rows)]))
            self._judge()
        with self.report.noting(f"/adaptive.json after {label}"):
            document = server.client.get("/adaptive.json")
            text = json.dumps(document, indent=1)
            (self.recorded / f"{label}-adaptive.json.gz").write_bytes(gzip.compress(text.encode()))
            about["alarms"] = [alarm for rank in document["ranks"] for alarm in rank.get("alarms", ())]

    def _serve(self, gpu: int, name: str, label: str, sizes: Sequence[int], end: float, more: Sequence[str]) -> None:
        """Run ``benchmarks.served drive`` until *end*; its file is DRIVES/LABEL.json."""
        scene = SCENES[name]
        verb = REPLAY if SERVERS[scene.server][0] == REPLAY else "greedy"
        seconds = end - time.monotonic()
        words = ["benchmarks.served", "drive", verb, *self._common(gpu, scene.server), "--budget", f"{seconds:.0f}"]
        words += ["--results", str(self.drives), "--name", label, "--depths", ",".join(map(str, DEPTHS))]
        words += ["--models", str(self.given.models), "--batches", ",".join(map(str, sizes))]
        words += ["--behind", str(BEHIND), *scene.options, *more]
        if self.given.requests:
            words += ["--requests", ",".join(f"{size}:{many}" for size, many in self.given.requests)]
        (self.drives / f"{label}.json").unlink(missing_ok=True)  # of an earlier command
        markers = [self._marker(self.running(gpu, scene.server), size) for size in sizes]
        words += ["--warm"] if all(marker.exists() for marker in markers) else []
        with self.report.noting(label):  # its file has what it finished
            self.command(gpu, words, seconds + LATE_SECONDS, label)
        for marker in markers:
            marker.touch()

    def _marker(self, server: Server | None, size: int) -> Path:
        """Return the file that says that a server has served batches of *size*."""
        if server is None:
            raise RuntimeError("the server has ended")
        return server.folder / f"warm-{size}-{server.pid}"

    # -- the end

    def _judge(self) -> list[dict[str, Any]]:
        rows = verdicts(self.scenes, self.driven)
        for name, turns in self.driven.items():
            self.report.content["scenes"][name]["batches"] = turns
        self.report.add(gates=rows, met=all(row["met"] for row in rows))
        return rows

    def close(self) -> None:
        """End this command's processes, stop the servers unless they are to be kept, and pack the recorded rounds."""
        for child in list(self._children):
            child.terminate()
        if not self.given.keep:
            with ThreadPoolExecutor(8) as pool:
                for gpu, server in self.wanted():
                    pool.submit(start.stop_left, self.folder_of(gpu, server))
        for gpu, server in self.wanted():
            for path in self.folder_of(gpu, server).glob("*.rounds*"):
                with self.report.noting(f"{path.name} of {server}"):
                    packed = self.recorded / f"{server}-gpu{gpu}-{path.name}.gz"
                    packed.write_bytes(gzip.compress(path.read_bytes(), 6))

    def finish(self) -> int:
        """Print the table and return the exit code."""
        return conclude(self._judge(), self.report.path)


def conclude(rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Print the table of *rows*, which are in *path*, and what is not met; return the exit code."""
    print("\n".join([*table(rows), f"wrote {path}"]))
    for row in rows:
        if not row["met"]:
            print(f"{row['scene']}, batch {row['batch']}: {'missed' if 'best' in row else 'not measured'}")
    return int(not all(row["met"] for row in rows))


def commit_of(scene: Mapping[str, Any], size: str) -> str:
    """Return the commit of a scene's turns at a batch size, which may differ where runs were joined."""
    return str(scene.get("commits", {}).get(size, scene["commit"]))


def join(paths: Sequence[Path], results: Path) -> int:
    """Write RESULTS/gates.json from the files of runs with other scenes each; return the exit code.

    Of a batch size the last run with enough turns counts; the scene's ``commits`` name it. Raises BadResult.
    """
    runs = [read(path) for path in paths]
    scenes: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, scene in run["scenes"].items():
            known = scenes.get(name, {"batches": {}, "commits": {}})
            for size, turns in scene["batches"].items():
                if len(turns) >= LEAST_TURNS or size not in known["batches"]:
                    known["batches"][size] = turns
                    known["commits"][size] = commit_of(scene, size)
            scenes[name] = {**scene, "batches": known["batches"], "commits": known["commits"]}
    driven = {name: {int(size): turns for size, turns in one["batches"].items()} for name, one in scenes.items()}
    joined = [name for name in SCENES if name in USUAL or name in driven]
    rows = verdicts({name: SCENES[name].batches for name in joined}, driven)
    about = {"plan": runs[-1]["plan"], "provenance": runs[-1]["provenance"]}
    about["runs"] = [one for run in runs for one in run.get("runs", [run["provenance"]])]
    notes = [line for run in runs for line in run["notes"]]
    results.mkdir(parents=True, exist_ok=True)
    met = all(row["met"] for row in rows)
    write(
        results / "gates.json", {"schema": SCHEMA, **about, "notes": notes, "gates": rows, "met": met, "scenes": scenes}
    )
    return conclude(rows, results / "gates.json")


def plant(server: Server, no_record: bool) -> list[list[float]]:
    """Make *server*'s policy start anew from a wrong saved profile; return batch size, steps and factor of its cells.

    Another policy in between makes the server save what it has learned and then load from disk as at a start; a
    throughput policy that replaces another one takes its times over. Raises RuntimeError if nothing is saved.
    """
    learnt, folder = server.folder / f"{OURS}-learnt", server.folder / f"{WRONG}-profile"
    shutil.rmtree(folder, ignore_errors=True)
    trace = {} if no_record else served.trace_of(server.folder, WRONG)
    began = time.time()
    server.force(None)
    server.client.configure({"policy": "ema", "1": {"candidate_steps": list(DEPTHS)}})
    end = time.monotonic() + SAVE_SECONDS
    while not (saved := [path for path in learnt.glob("*.json") if path.stat().st_mtime >= began - 1]):
        if time.monotonic() > end:
            raise RuntimeError("the server saved no profile")
        time.sleep(0.1)
    time.sleep(0.2)
    profile = loads_profile(saved[0].read_text(), saved[0].name)
    wrong = spoiled(profile)
    if not ProfileStore(profile.key, folder).save(wrong):
        raise RuntimeError("the wrong profile could not be written")
    server.client.configure({"policy": "throughput", "throughput": {"profile_dir": str(folder)}, **trace})
    pairs = zip(profile.cells, wrong.cells, strict=True)
    return [[a.batch_size, a.steps, b.seconds / a.seconds] for a, b in pairs if a != b]


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, or 1 if a gate is missed or was not measured."""
    given = parser().parse_args(argv)
    begin = time.monotonic()
    end = start.begin(given)
    if given.join:
        return join(given.join, given.results)
    run = Run(given, argv, end - min(END_SECONDS, 0.2 * given.budget))
    if given.start:
        run.start()
        return int(any(run.running(*one) is None for one in run.wanted()))
    try:
        run.start()
        run.wait_for_kernels()
        run.report.say(f"servers took {time.monotonic() - begin:.0f} s")
        run.drive()
    finally:
        run.close()
        code = run.finish()
    return code


def parser() -> argparse.ArgumentParser:
    made = command_parser("gates", __doc__)
    start.add_options(made, 600.0)
    add = made.add_argument
    add(
        "--scenes", type=start.some_of(SCENES), default=USUAL, help=f"of {','.join(SCENES)}; default: {','.join(USUAL)}"
    )
    add("--batches", type=start.ints, default=[1, 4, 16, 64], help="only these batch sizes, for a rehearsal")
    add("--requests", type=start.pairs, metavar="BATCH:N,...", help="requests per pass, instead of each scene's own")
    add("--start", action="store_true", help="only start the servers, and leave them running for another command")
    add("--keep", action="store_true", help="leave the servers running")
    add("--join", type=Path, nargs="+", metavar="FILE", help="only make one gates.json of those of several runs")
    add("--no-record", action="store_true", help="do not record the servers' rounds")
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
