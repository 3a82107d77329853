"""SGLang servers on one GPU or the CPU engine: their command lines, and how they start, keep running, and stop."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.harness import acceptance, shapes
from benchmarks.harness.acceptance import Declared, Process
from benchmarks.harness.plugin import PLUGINS, merged_environment
from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.command_line import server_url
from sglang_adaptive.lab.cpu_engine.server import BootLog, free_port
from sglang_adaptive.lab.models.smollm2 import target_folder
from sglang_adaptive.provenance import pasteable

OURS = "sglang_adaptive"
"""Name of this package's entry point."""

STRICT_LOADS = "SGLANG_CRASH_ON_TRITON_LOAD_AFTER_READY"
CRASH = "Scheduler hit an exception"
DEPTHS = (0, 1, 2, 3, 5, 7)
"""Static depths, and the tiers of this package's policies."""

LATE, LATER = 30, 15
"""Seconds after its budget at which a command is ended, and after which it is killed if that hangs."""

_TIER = re.compile(r"Built adaptive runtime state steps=(\d+): elapsed=([\d.]+)\s*s, mem=(-?[\d.]+)\s*GB")
_ERROR = re.compile(r"^(?:\[[^\]]*\] )?(?:\w+\.)*(\w*(?:Error|Exception|Refused|Exit|Interrupt)): ?(.*)$")


class NotStarted(RuntimeError):
    """The server did not start; the message is one line, with its log's last error."""


# -- what servers are started with ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """One server's SGLang arguments."""

    name: str
    speculate: bool = True
    arguments: Sequence[str] = ()
    config: Mapping[str, Any] | None = None
    """Content of the adaptive configuration file; None for no file."""
    ours: bool = False
    """Whether this package's plugin is loaded; without it the server is stock SGLang."""
    saved_profile: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def files(self, folder: Path, profiles: Path) -> list[str]:
        """Write the configuration into *folder* and return the arguments that name it.

        A policy with a saved profile reads and keeps it in *profiles*; any other starts without one.
        """
        if self.config is None:
            return []
        config = dict(self.config)
        if config.get("policy") == "throughput":
            kept = profiles if self.saved_profile else folder / f"{self.name}-learnt"
            config["throughput"] = {"profile_dir": str(kept), **config.get("throughput", {})}
        path = folder / "configs" / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
        return ["--speculative-adaptive-config", str(path)]


def _static(steps: int) -> Policy:
    # SGLang has no static depth of 0 steps, so it is forced on an adaptive server.
    return Policy(f"static-{steps}", arguments=_width(steps))


def _width(steps: int) -> tuple[str, ...]:
    return ("--speculative-num-steps", str(steps), "--speculative-num-draft-tokens", str(steps + 1))


_STOCK = ("--speculative-adaptive",)
_THROUGHPUT: dict[str, Any] = {"policy": "throughput"}
POLICIES = {
    policy.name: policy
    for policy in (
        Policy("none", speculate=False),
        *(_static(steps) for steps in DEPTHS if steps),
        Policy("sglang-ema", arguments=_STOCK),
        Policy("sglang-ema-all", arguments=_STOCK, config={"1": {"candidate_steps": [0, 1, 2, 3, 4, 5, 7]}}),
        Policy("ema", config={"policy": "ema", "1": {"candidate_steps": list(DEPTHS)}}, ours=True),
        Policy("throughput", config=_THROUGHPUT, ours=True),
        Policy("throughput-lookups", config={**_THROUGHPUT, "throughput": {"lookup": True}}, ours=True),
        Policy("throughput-saved", config=_THROUGHPUT, ours=True, saved_profile=True),
        Policy(
            "throughput-plan-stream", config=_THROUGHPUT, ours=True,
            variables={"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"},
        ),
    )
}  # fmt: skip


def chosen(names: Iterable[str]) -> list[Policy]:
    """Return the policies of *names*. Raises ValueError for an unknown one."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in POLICIES]
    if unknown:
        raise ValueError(f"--policies: {unknown[0]} is not one of {', '.join(POLICIES)}")
    return [POLICIES[name] for name in wanted]


@dataclass(frozen=True)
class Host:
    """One GPU, or several under tensor parallelism, or the CPU engine: turns a policy into a command line."""

    target: str
    draft: str
    max_requests: int
    cpu: bool = False
    """The CPU engine: for rehearsals, not for figures."""
    extra: Sequence[str] = ()
    """Additional arguments of every server."""
    speculation: Sequence[str] = ()
    """Arguments of servers that speculate, instead of EAGLE-3 with *draft*."""
    weights: Sequence[str] = ("--load-format", "dummy")
    """How a GPU server loads the models."""
    prefix_cache: bool = False
    """Whether SGLang's radix cache is on: repeated prompts then need almost no prefill."""
    strict_loads: bool = False
    """With this package's plugin, a kernel loaded while serving ends the server instead of adding a line to its log."""
    kv_tokens: int = 100_000
    """KV cache of a GPU server in tokens; several servers may share the device."""
    prefill_graphs: bool = False
    """Prefill graphs cost 27 s of a start-up on an H200 and change no decode round."""

    def command(self, policy: Policy, folder: Path, port: int, profiles: Path | None = None) -> list[str]:
        """Return the server's command line; writes the configuration into *folder*.

        Saved profiles are in *profiles*, by default in FOLDER/profiles.
        """
        given = [*self._base(), *self.extra]
        if policy.speculate:
            eagle = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", self.draft)
            given += self.speculation or (*eagle, "--speculative-eagle-topk", "1")
            given += [*policy.arguments, *policy.files(folder, profiles or folder / "profiles")]
        return launch_command(given, port)

    def _base(self) -> list[str]:
        cache = () if self.prefix_cache else ("--disable-radix-cache",)
        if self.cpu:
            from sglang_adaptive.serve_cpu import default_arguments

            own = ["--model-path", self.target, "--max-running-requests", str(self.max_requests), *cache]
            return [*own, *default_arguments([*own, *self.extra])]
        # The pool is capped by tokens: a share of memory would depend on which server allocates first.
        return [
            *("--model-path", self.target, *self.weights, "--skip-tokenizer-init", *cache),
            *("--mem-fraction-static", "0.85", "--max-total-tokens", str(self.kv_tokens)),
            *("--max-running-requests", str(self.max_requests), "--cuda-graph-max-bs-decode", str(self.max_requests)),
            *(() if self.prefill_graphs else ("--cuda-graph-backend-prefill", "disabled")),
        ]


def launch_command(arguments: Sequence[str], port: int) -> list[str]:
    """Return the command line of a server with *arguments*."""
    return [sys.executable, "-m", "sglang.launch_server", *arguments, "--host", "127.0.0.1", "--port", str(port)]


def gpu(models: Path, max_requests: int, pair: str = "llama8b", **more: Any) -> Host:
    """Return the host of a pair of shapes with dummy weights, whose config files are written below *models*."""
    target = models / pair
    if pair in shapes.TARGETS:
        shapes.write_pair(models, pair)
        if shapes.has_nextn(shapes.TARGETS[pair]):
            nextn = ("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1")
            more = {"speculation": nextn, **more}
    return Host(str(target), f"{target}-eagle3", max_requests, **more)


def cpu(max_requests: int, **more: Any) -> Host:
    """Return the CPU engine with the tiny pair that the package ships."""
    from sglang_adaptive.lab.cpu_engine import models

    return Host(str(models.target_path()), str(models.draft_path()), max_requests, cpu=True, **more)


def smollm2_folders(models: Path) -> tuple[Path, Path]:
    """Return the folders of SmolLM2 and its draft: below *models*, otherwise those of ``models get smollm2``."""
    folder = models / "smollm2" if (models / "smollm2" / "target").exists() else target_folder().parent
    return folder / "target", max(folder.glob("draft*"), default=folder / "draft")


def smollm2(models: Path, max_requests: int, on_cpu: bool, extra: Sequence[str] = (), **more: Any) -> Host:
    """Return the host of SmolLM2 and its draft, with their own weights."""
    target, draft = map(str, smollm2_folders(models))
    if on_cpu:
        return Host(target, draft, max_requests, cpu=True, extra=("--skip-tokenizer-init", *extra), **more)
    return Host(target, draft, max_requests, extra=extra, weights=("--dtype", "bfloat16"), **more)


def blocks(host: Host) -> Host:
    """Return *host* with the DFLASH draft of its pair."""
    from sglang_adaptive.lab.cpu_engine import models

    draft = models.block_draft_path() if host.cpu else f"{host.target}-dflash"
    width = ("--speculative-num-draft-tokens", str(shapes.BLOCK))
    return replace(
        host, speculation=("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft, *width)
    )


def host_environment(on_cpu: bool) -> dict[str, str]:
    """Return the variables that every server of the host needs."""
    if not on_cpu:
        return {}
    from sglang_adaptive.serve_cpu import PLUGIN, environment

    return {**environment(), PLUGINS: PLUGIN}


# -- a server -------------------------------------------------------------------------------------------------------


class Server:
    """A server in its own process group, started by this process or left running by an earlier one."""

    def __init__(
        self, policy: Policy, folder: Path, command: Sequence[str], environment: Mapping[str, str], port: int,
        timeout: float = 600.0,
    ) -> None:  # fmt: skip
        self.policy, self.folder, self.command, self.environment = policy, folder, list(command), dict(environment)
        self.client = Client("127.0.0.1", port, timeout=timeout)
        self.log = folder / f"{policy.name}.log"
        self.start_seconds: float | None = None
        self.alone = True
        """Whether no other server of the run started meanwhile; a depth's GB are the decrease in free GPU memory."""
        self.pid: int | None = None
        self.scratch: str | None = None
        """Folder of the server's temporary files: SGLang never removes its sockets there."""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    @cached_property
    def process(self) -> Process:
        """The declared acceptance, and the rounds that the server counts."""
        return Process(self.folder / f"{self.name}.acceptance")

    # -- its life

    def launch(self) -> None:
        """Start the processes and return; the caller uses :meth:`wait` and :meth:`stop`."""
        self._begin = time.monotonic()
        self.scratch = tempfile.mkdtemp(prefix="bench-")  # not below the results, because socket paths must be short
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(
                self.command, env={**self.environment, "TMPDIR": self.scratch}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.pid, self._boot = self._child.pid, BootLog(self.log)
        _STARTED.append(self)

    def is_ready(self) -> bool:
        """Return whether a launched server answers. Raises NotStarted if it has ended, or a scheduler has failed."""
        self._boot.new_stages()
        if self._boot.ready:
            self.start_seconds = round(time.monotonic() - self._begin, 1)
        elif not self.is_well():
            raise NotStarted(f"{self.name} exited during startup: {self.last_error()}")
        return self._boot.ready

    def wait(self, deadline: float) -> None:
        """Wait until the server answers. Raises NotStarted if it ends, or does not answer by *deadline* (monotonic)."""
        while not self.is_ready():
            if time.monotonic() > deadline:
                waited = time.monotonic() - self._begin
                raise NotStarted(f"{self.name} was not ready after {waited:.0f} s: {self.last_error()}")
            time.sleep(0.2)

    def is_running(self) -> bool:
        """Return whether the first process of the server exists."""
        if self._child is not None:
            return self._child.poll() is None
        try:
            os.kill(self.pid or 0, 0)
        except OSError:
            return False
        return self.pid is not None

    def is_well(self) -> bool:
        """Return whether the server runs and no scheduler has failed; SGLang ends up to a minute after that."""
        return self.is_running() and CRASH not in self._text()

    def stop(self, grace: float = 15.0) -> None:
        """Stop every process of the server, after *grace* seconds by force; does nothing if it is already stopped."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if grace:  # SGLang ends at once on SIGINT; on SIGTERM it checks only every five seconds.
                os.kill(self.pid, signal.SIGINT)
            deadline = time.monotonic() + grace
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.pid = None
        if self._child is not None:
            self._child.wait()
        if self in _STARTED:
            _STARTED.remove(self)
        self._record().unlink(missing_ok=True)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def leave(self) -> None:
        """Leave the server running after this process, and record how :func:`attach` finds it again."""
        record = {
            "policy": asdict(self.policy), "port": self.client.port, "command": self.command,
            "plugins": self.plugins, "start_seconds": self.start_seconds, "alone": self.alone, "pid": self.pid,
            "scratch": self.scratch,
        }  # fmt: skip
        self._record().write_text(json.dumps(record))
        if self in _STARTED:
            _STARTED.remove(self)

    def _record(self) -> Path:
        return self.folder / f"{self.name}.running"

    # -- what is asked of it

    def force(self, steps: int | None) -> None:
        """Hold the depth, or release it if None. Raises ValueError if this is not one of our adaptive servers."""
        if not self.policy.ours:
            raise ValueError(f"{self.name} has no adaptive_force_steps: only servers with this package's plugin do")
        self.client.force_steps(steps)

    def states(self) -> list[dict[str, Any]]:
        """Return the plugin's states in /server_info, one per rank; empty if the server is gone."""
        try:
            told = [state.get("adaptive") for state in self.client.server_info()["internal_states"]]
        except (OSError, RequestError):
            return []
        return [state for state in told if state]

    @property
    def plugins(self) -> str:
        return self.environment.get(PLUGINS, "")

    def described(self) -> dict[str, Any]:
        """Return the command line, plugins, start-up, and the plugin's state, without local folders."""
        told = json.loads(json.dumps(self.states()).replace(f"{self.folder}{os.sep}", ""))
        own = [word.removeprefix(f"{self.folder}{os.sep}") for word in self.command]
        return {
            "command": pasteable(own), "plugins": self.plugins.split(","), "startup": self.startup(),
            "adaptive": told[0] if told else None, **({"ranks": told} if len(told) > 1 else {}),
        }  # fmt: skip

    def startup(self) -> dict[str, Any]:
        """Return the seconds until the server answered, those of each tier, from the log, and if it started alone."""
        tiers = tiers_built(self._text())
        totals = {key: round(sum(tier[key] for tier in tiers), 3) for key in ("seconds", "gb")}
        return {"seconds": self.start_seconds, "alone": self.alone, "tiers": tiers, "tiers_total": totals}

    def log_tail(self) -> str:
        """Return the last 25 lines of the log, each cut at 300 characters."""
        return "\n".join(line[:300] for line in self._text().splitlines()[-25:])

    def last_error(self) -> str:
        """Return the log's last line that names an exception, or else its last line; at most 400 characters."""
        return last_error(self._text())

    def _text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass(frozen=True)
class Contender:
    """A server, possibly with held steps or another configuration in force."""

    server: Server
    steps: int | None = None
    """The held depth; None lets the policy decide."""
    title: str = ""
    config: Mapping[str, Any] | None = None
    """The adaptive configuration to apply; None to leave it unchanged."""

    @property
    def name(self) -> str:
        """``static-3`` if a depth is held, because it represents that static depth."""
        return self.title or (self.server.name if self.steps is None else f"static-{self.steps}")

    def take_over(self) -> None:
        """Put the server into this state before a pass."""
        if self.config is not None:
            self.server.client.configure(self.config)
        if self.server.policy.ours:
            self.server.force(self.steps)


_STARTED: list[Server] = []
"""Servers of this process that must not outlive it."""


def server_of(
    policy: Policy,
    folder: Path,
    command: Callable[[int], Sequence[str]],
    cpu: bool,
    *variables: Mapping[str, str],
    timeout: float = 600.0,
) -> Server:
    """Return an unlaunched server of *policy*; *command* makes its command line from the port.

    It loads the host's plugins, this package's if the policy needs it, and those of *variables*.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, ours = free_port(), {PLUGINS: OURS} if policy.ours else {}
    environment = merged_environment(host_environment(cpu), policy.variables, ours, *variables)
    return Server(policy, folder, command(port), environment, port, timeout)


def policy_server(
    policy: Policy,
    host: Host,
    folder: Path,
    *,
    profiles: Path | None = None,
    simulate: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Server:
    """Return an unlaunched server of *policy*; its scheduler counts rounds, and draws acceptance if requested.

    *variables*, for example of further plugins, are added last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = Process(folder / f"{policy.name}.acceptance", create=True)
    process.declared = Declared(0.6)
    strict = {STRICT_LOADS: "1"} if host.strict_loads and policy.ours else {}
    blocks_drafted = {acceptance.BLOCKS: "1"} if "DFLASH" in host.speculation else {}
    counting = acceptance.environment(process.path, folder / "plugin", simulate and policy.speculate)
    return server_of(
        policy, folder, lambda port: host.command(policy, folder, port, profiles), host.cpu, strict, blocks_drafted,
        counting, variables or {},
    )  # fmt: skip


def attach(name: str, folder: Path) -> Server:
    """Return a server that was left running in *folder*. Raises ValueError when there is none."""
    try:
        record = json.loads((folder / f"{name}.running").read_text())
    except FileNotFoundError:
        raise ValueError(f"{name} was not left running in {folder}") from None
    plugins = {PLUGINS: record["plugins"]}
    server = Server(Policy(**record["policy"]), folder, record["command"], plugins, record["port"])
    for key in ("start_seconds", "alone", "pid", "scratch"):
        setattr(server, key, record[key])
    return server


def attached(names: Iterable[str], folder: Path, note: Callable[[str], None]) -> list[Server]:
    """Return those of *names* that still run; note the others, and why."""
    found = []
    for name in names:
        try:
            server = attach(name, folder)
        except ValueError:
            note(f"without {name}: it was not left running")
            continue
        if server.is_running():
            found.append(server)
        else:
            note(f"without {name}: it has ended: {server.last_error()}")
    return found


def stop_left(folder: Path) -> None:
    """Stop every server that was left running in *folder*."""
    for record in sorted(folder.glob("*.running")):
        attach(record.stem, folder).stop()
        print(f"stopped {record.stem}", flush=True)


def start_all(
    policies: Sequence[Policy], make: Callable[[Policy], Server], end: float, leave: bool = False
) -> list[Server]:
    """Start the servers of *policies* together and return those ready by *end*; one that fails is tried twice.

    Its first log is kept as NAME-first.log. With *leave* they outlive this process.
    """
    waiting = {policy.name: _launched(make, policy, len(policies)) for policy in policies}
    tried, found = dict.fromkeys(waiting, 1), []
    while waiting:
        time.sleep(0.2)
        for policy in [policy for policy in policies if policy.name in waiting]:
            server, late = waiting[policy.name], time.monotonic() > end
            try:
                if not server.is_ready():
                    if not late:
                        continue
                    raise NotStarted(f"{server.name} was not ready in time: {server.last_error()}")
            except NotStarted as problem:
                print(f"{problem}\n{server.log_tail()}", file=sys.stderr, flush=True)
                server.stop()
                if tried[policy.name] == 1 and not late:
                    server.log.rename(server.log.with_name(f"{server.name}-first.log"))
                    waiting[policy.name], tried[policy.name] = _launched(make, policy, len(policies)), 2
                    continue
            else:
                found.append(server)
                print(f"  {server.name} ready after {server.start_seconds:.1f} s: {server.client.url}", flush=True)
                if leave:
                    server.leave()
            del waiting[policy.name]
    return found


def stop_started(grace: float = 15.0) -> None:
    """Stop every server that this process has started and not left running."""
    for server in list(_STARTED):
        server.stop(grace)


def _launched(make: Callable[[Policy], Server], policy: Policy, together: int) -> Server:
    server = make(policy)
    server.alone = together == 1
    server.launch()
    return server


def tiers_built(log: str) -> list[dict[str, float]]:
    """Return depth, seconds and GB of every tier besides the launch depth's that was built, from SGLang's log."""
    found = (match.groups() for match in _TIER.finditer(log))
    return [{"steps": int(steps), "seconds": float(seconds), "gb": float(gb)} for steps, seconds, gb in found]


def last_error(log: str) -> str:
    """Return the last line of *log* that names an exception, or else its last line; at most 400 characters.

    Processes that SGLang ends because another one failed report their own exit; those lines do not count.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [found for found in map(_ERROR.match, lines) if found and found[1] not in ("SystemExit", "Exit")]
    causes = [found for found in named if "Rank 0 scheduler" not in found[2] and "scheduler died" not in found[2]]
    last = (causes or named)[-1:]
    return (f"{last[0][1]}: {last[0][2]}" if last else (lines or [""])[-1])[:400]


# -- a command ------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, budget: float) -> None:
    """Add the options of every benchmark of servers."""
    add = parser.add_argument
    add(
        "--host",
        choices=("gpu", "cpu"),
        default="gpu",
        help="cpu is a rehearsal on the CPU engine; ignore its figures",
    )
    add("--work", type=Path, default=_work(), help="folder for logs, models and running servers (default: $WORK)")
    add("--results", type=Path, help="folder for the JSON files (default: WORK/results)")
    add(
        "--budget",
        type=float,
        default=budget,
        metavar="SECONDS",
        help="time limit (default: %(default)s)",
    )
    add("--models", type=Path, default=Path("/tmp/m"), help="models folder; shapes are written to it")
    add("--server-arguments", default="", type=str.split, help="extra arguments for every server, in one string")


def begin(given: argparse.Namespace) -> float:
    """Make the folders absolute, make sure this process ends in time, and return when its budget ends.

    On SIGTERM, and LATE seconds after the budget, SystemExit is raised. Servers of this process end with it.
    """
    atexit.register(stop_started)
    given.work.mkdir(parents=True, exist_ok=True)
    given.work = given.work.resolve()
    given.results = (given.results or given.work / "results").resolve()
    ended = False

    def end(number: int, frame: object) -> NoReturn:
        nonlocal ended
        if ended:
            os._exit(128 + number)
        ended = True
        signal.alarm(LATER)
        stop_started(grace=0)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    signal.alarm(int(given.budget) + LATE)
    return time.monotonic() + given.budget


class OutOfTime(RuntimeError):
    """The time of a step is over."""


def in_time(end: float) -> None:
    """Raises OutOfTime if *end* (monotonic) has passed."""
    if time.monotonic() > end:
        raise OutOfTime("out of time")


def _work() -> Path:
    return Path(os.environ.get("WORK", "/tmp/benchmarks"))


def named(text: str) -> tuple[str, str]:
    """Return the name and the URL of NAME=URL."""
    name, equals, url = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected NAME=URL")
    return name, server_url(url)


def ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    return text.split(",")


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of A,B,... that takes only *known* names; it returns them in the order of *known*."""
    accepted = list(known)

    def parse(text: str) -> list[str]:
        wanted = names(text)
        if unknown := [name for name in wanted if name not in accepted]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(accepted)}")
        return [name for name in accepted if name in wanted]

    return parse


def pairs(text: str) -> list[tuple[int, int]]:
    """Return A:B,... as pairs of integers."""
    return [(int(left), int(right)) for left, right in (part.split(":") for part in text.split(","))]
