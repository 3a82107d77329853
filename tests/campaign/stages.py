"""The stages of a campaign, each a function that runs one unit, and the servers that units share."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.serve_cpu import environment
from tests.campaign import asking, clients, doors, faults, gpu, operations, servers
from tests.campaign.counts import check_end, check_memory
from tests.campaign.record import Unit

ROOT = Path(__file__).parents[2]
REQUESTS, SEEDS, OPERATIONS, STEPPED = "requests", "seeds", "operations", "stepped scheduler"
STEPPED_SECONDS = 3600.0


@dataclass
class Site:
    """Where a campaign runs: a folder, the servers without speculation, and the size of a unit."""

    folder: Path
    each: int = 2
    """Requests of each kind per unit."""

    sequences: int = 25
    """Sequences per unit of the stepped scheduler."""

    short: bool = False
    _plain: dict[bool, CpuServer] = field(default_factory=dict)
    """By *seeded*."""
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _long: dict[str, CpuServer] = field(default_factory=dict)
    """The servers of the stage "operations" by variant, which are kept as long as possible."""
    begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was measured after the first unit of each."""

    def plain(self, seeded: bool = False) -> CpuServer:
        """Return the running server without speculation, which honors seeds if *seeded*."""
        with self._starting:
            if seeded not in self._plain or not self._plain[seeded].is_running():
                self._plain[seeded] = servers.plain(self.folder, seeded)
                self._plain[seeded].start()
            return self._plain[seeded]

    def early(self, seeded: bool = False) -> None:
        """On a GPU, start the server without speculation while the caller starts another: each takes a minute."""
        if gpu.used:
            threading.Thread(target=self.plain, args=(seeded,)).start()

    def long_lived(self, variant: str) -> CpuServer:
        """Return the server of a variant that all units of "operations" share; replace it if it is gone."""
        if variant not in self._long or not self._long[variant].is_running():
            folder = self.folder / "operations" / variant.replace(" ", "-").replace(",", "")
            self._long[variant], self.begun[variant] = servers.adapting(folder, variant), {}
            self._long[variant].start()
        return self._long[variant]

    def close(self) -> None:
        for server in (*self._plain.values(), *self._long.values()):
            server.stop()


def requests(unit: Unit, site: Site) -> None:
    """Run every kind of request on one server variant, with clients that leave, sessions and samples."""
    draw, name = unit.random(), _next_variant(unit)
    site.early()
    with servers.adapting(site.folder / f"requests-{unit.index}", name) as server:
        _every_kind(unit, site, server, draw)
        check_end(unit, server, site.plain())


def _next_variant(unit: Unit) -> str:
    """Return the unit's server variant, in rotation, and record it."""
    names = list(servers.VARIANTS)
    unit.figures["server"] = name = names[unit.index % len(names)]
    return name


def _every_kind(unit: Unit, site: Site, server: CpuServer, draw: random.Random) -> None:
    plain = site.plain()
    asking.compare(unit, plain, server, asking.questions(draw, site.each))
    if not site.short:
        asking.compare(unit, plain, server, asking.crowd(draw))
    clients.sessions(unit, plain, server, draw)
    clients.sampled(unit, plain, server, draw, 60 if site.short else clients.SAMPLES)
    clients.come_and_go(unit, server, draw, 4 if site.short else 16)


def seeds(unit: Unit, site: Site) -> None:
    """Run sampled requests with seeds among greedy ones of every kind, on one server variant."""
    draw, name = unit.random(), _next_variant(unit)
    site.early(seeded=True)
    with servers.adapting(site.folder / f"seeds-{unit.index}", name, *servers.SEEDED) as server:
        plain = site.plain(seeded=True)
        asking.compare(unit, plain, server, asking.questions(draw, site.each, seeded=True))
        check_end(unit, server, plain)


def operate(unit: Unit, site: Site) -> None:
    """Run the same requests during all of an operator's actions, on two servers in turn, kept from unit to unit."""
    site.early()
    unit.figures["server"] = variant = (servers.MIXED, servers.REMEMBERING)[unit.index % 2]
    draw, server = unit.random(), site.long_lived(variant)
    log, first = server.log_path.stat().st_size, servers.VARIANTS[variant][0]
    with operations.meanwhile(unit, server, random.Random(draw.getrandbits(60)), first):
        _every_kind(unit, site, server, draw)
    asking.compare(unit, site.plain(), server, draw.sample(asking.questions(draw, 1), 8))
    check_end(unit, server, site.plain(), "Timeout|503", log)
    check_memory(unit, server, site.begun[variant])


def doors_of(unit: Unit, site: Site) -> None:
    with servers.adapting(site.folder / "doors") as server:
        doors.run(unit, server)
        check_end(unit, server, site.plain())


def killed(unit: Unit, site: Site) -> None:
    faults.killed(unit, site.plain(), servers.profiled(site.folder / "killed"), unit.random())


def stepped(unit: Unit, site: Site) -> None:
    """Run sequences drawn by hypothesis, in a separate process."""
    folder = site.folder / "stepped"
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), environment()["PYTHONPATH"]])
    seed = unit.random().getrandbits(30)
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign.machine", str(folder), str(seed), str(site.sequences)],
        cwd=ROOT, env={**os.environ, **environment(), "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=STEPPED_SECONDS, check=False,
    )  # fmt: skip
    found: dict[str, Any] = {}
    with suppress(IndexError, ValueError):
        found = json.loads(done.stdout.splitlines()[-1])
    unit.tried.update(found.get("tried", {}))
    unit.figures["memory grown, MB"] = found.get("grown_mb")
    failure = found.get("failure", f"code {done.returncode}: {done.stderr[-2000:]}")
    unit.check(not failure, "all that has to hold in a stepped scheduler", failure)


STAGES: dict[str, tuple[Callable[[Unit, Site], None], int]] = {
    doors.STAGE: (doors_of, 1),
    REQUESTS: (requests, 3),
    SEEDS: (seeds, 2),
    OPERATIONS: (operate, 6),
    STEPPED: (stepped, 4),
    faults.KILLED: (killed, 1),
}
"""Each with its share of the campaign's time."""
