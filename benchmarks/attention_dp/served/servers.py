"""The servers: a small mixture of experts whose output and ranks are checked, and a large one whose rate is measured.

adaptive    the small shape with this benchmark's weights and real acceptance; logs its rounds
reference   the same without speculation
liar        the small shape with simulated acceptance, the second rank's clock lies; logs its rounds
rated       the large shape with simulated acceptance; logs its rounds
none        the large shape without speculation
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.architectures import shapes
from benchmarks.architectures.families import FA3, Family
from benchmarks.architectures.servers import ArchitectureServer, Kind
from benchmarks.architectures.weights import ENTRY_POINT as WEIGHTS
from benchmarks.attention_dp.served import round_log, tiny
from benchmarks.server import hosts
from benchmarks.server.policies import POLICIES
from benchmarks.server.process import Process
from benchmarks.server.ranks import file_of
from benchmarks.server.servers import Server
from benchmarks.server.shapes import TARGETS, draft_of

RANKS = 2
DP = ("--tp-size", str(RANKS), "--dp-size", str(RANKS), "--enable-dp-attention")
# Servers that load side by side leave the ranks of one unequal memory, which SGLang would refuse.
SIDE_BY_SIDE = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
LARGE = "qwen3-30b-a3b"
SIZES = ("1", "2", "4", "8", "16", "32", "48")
"""Batch sizes of a rank with CUDA graphs."""
LIE = 3.0
SMALL = {"qwen3-moe": shapes.QWEN3_MOE, "deepseek-v3": shapes.DEEPSEEK_V3}
DEPTHS = (0, 1, 2, 3, 5)
_SMALL = (
    *FA3, *DP, "--context-length", "4096", "--chunked-prefill-size", "1024", "--max-total-tokens", "65536",
    "--max-running-requests", "64",
)  # fmt: skip


@dataclass
class Place:
    """Starts the servers in *folder*, all at once on GPUs, one after the other on the CPU engine."""

    folder: Path
    cpu: bool
    pair: str = "qwen3-moe"
    layers: int | None = None
    """Of the large shape; None for all."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._made: dict[str, Any] = {}

    def start(self, *names: str) -> None:
        """Begin to start servers; on the CPU engine :meth:`up` does it."""
        for name in names:
            if not self.cpu:
                self._begin(name)

    @contextmanager
    def up(self, name: str, deadline: float) -> Iterator[Any]:
        """Give the server *name* once it answers, and stop it at the end. Raises NotStarted, at *deadline* at last."""
        server = self._made.get(name) or self._begin(name)
        try:
            server.wait(deadline)
            yield server
        except (OSError, TimeoutError):
            self.stacks(server)
            raise
        finally:
            server.stop()

    def stop(self) -> None:
        """Stop every server."""
        for server in self._made.values():
            server.stop()

    def log(self, name: str) -> Path:
        """Return the path of a server's round logs."""
        return self.folder / f"{name}-rounds-of-rank-"

    def stacks(self, server: Any) -> None:
        """Let the server's processes write their stacks to its log, to see where a rank waits."""
        leader = server.pid if isinstance(server, Server) else server._start.process.pid
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                title = Path("/proc", pid, "cmdline").read_bytes()
                if os.getpgid(int(pid)) == leader and b"scheduler" in title:
                    os.kill(int(pid), round_log.STACKS)
        time.sleep(2.0)

    def _begin(self, name: str) -> Any:
        made = self._checked(name) if name in ("adaptive", "reference") else self._simulated(name)
        self._made[name] = made
        (made.start if isinstance(made, ArchitectureServer) else made.launch)()
        return made

    def _checked(self, name: str) -> ArchitectureServer:
        family = self._family(name)
        kind = Kind.ADAPTIVE if name == "adaptive" else Kind.REFERENCE
        return ArchitectureServer(family, self.folder, kind, self.cpu)

    def _family(self, name: str) -> Family:
        target = tiny.TARGET if self.cpu else SMALL[self.pair]
        own = "num_nextn_predict_layers" in target
        family = Family(
            name, self.pair, "EAGLE" if own else "EAGLE3", "NextN" if own else "EAGLE-3", target,
            None if own else (tiny.DRAFT if self.cpu else shapes.eagle3_of(target)),
            arguments=(*tiny.ARGUMENTS, *DP) if self.cpu else _SMALL,
            variables={**SIDE_BY_SIDE, **(tiny.VARIABLES if self.cpu else {})},
            depths=DEPTHS, warm_up=True,
        )  # fmt: skip
        if name == "reference":
            return family
        plugins = [WEIGHTS, hosts.OURS, round_log.ENTRY_POINT, *self._engine()]
        more = {**self._logging(name, 0.0), "SGLANG_PLUGINS": ",".join(plugins)}
        return replace(family, variables={**family.variables, **more})

    def _simulated(self, name: str) -> Server:
        # Rates are of a server whose kernels are loaded; on a CPU there are none.
        config = {"policy": "throughput", "warm_up": name == "rated" and not self.cpu}
        speculates = name != "none"
        variables = {**SIDE_BY_SIDE, **(tiny.VARIABLES if self.cpu else {})}
        own = replace(POLICIES["throughput" if speculates else "none"], name=name, variables=variables)
        policy = replace(own, config=config) if speculates else own
        server = Server(policy, self._host(name), self.folder, self.folder / f"{name}-profiles")
        for rank in range(1, RANKS):
            Process(file_of(server.process.path, rank), create=True)
        if speculates:
            logging = self._logging(name, LIE if name == "liar" else 0.0)
            names = f"{server.environment['SGLANG_PLUGINS']},{round_log.ENTRY_POINT}"
            server.environment = hosts.merged_environment(server.environment, logging, {"SGLANG_PLUGINS": names})
        return server

    def _host(self, name: str) -> hosts.Host:
        models = self.folder / "models"
        if self.cpu:
            target, draft = (str(shapes.write(models / f"tiny{end}", one)) for end, one in tiny.PAIR)
            return hosts.Cpu(target, draft, 64, (*tiny.ARGUMENTS, *DP))
        if name == "liar":
            large = shapes.QWEN3_MOE
            pair = (("small", large), ("small-eagle3", shapes.eagle3_of(large)))
        else:
            large = {**TARGETS[LARGE], **({"num_hidden_layers": self.layers} if self.layers else {})}
            pair = ((LARGE, large), (f"{LARGE}-eagle3", draft_of(large)))
        for folder, shape in pair:
            shapes.write(models / folder, shape)
        more = ("--cuda-graph-bs-decode", *SIZES, "--watchdog-timeout", "300", "--disable-flashinfer-autotune")
        tokens = 60_000 if name == "liar" else 120_000
        return hosts.gpu(models, 2 * int(SIZES[-1]), pair[0][0], extra=(*FA3, *DP, *more), kv_tokens=tokens)

    def _logging(self, name: str, lie: float) -> Mapping[str, str]:
        return round_log.environment(self.folder / "plugin-of-rounds", self.log(name), lie)

    def _engine(self) -> list[str]:
        from sglang_adaptive.cpu_engine.names import PLUGIN

        return [PLUGIN] if self.cpu else []


def described(server: Any, folder: Path) -> dict[str, Any]:
    """Return a server's command line, seconds to start, and what each rank says of itself."""
    words = [word.removeprefix(f"{folder}/") for word in server.command[1:]]
    return {"command": words, "start_seconds": server.start_seconds, "ranks": states(server)}


def states(server: Any) -> list[dict[str, Any]]:
    """Return what the plugin says in /server_info, a rank each."""
    client = getattr(server, "client", server)
    info = client.server_info()["internal_states"]
    found: list[dict[str, Any]] = json.loads(json.dumps([state.get("adaptive") for state in info]))
    return found
