"""A real Prometheus (Debian's package) on a free port, with monitoring/prometheus.yml but a scrape every second."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlencode

import yaml

from sglang_adaptive.client import Client
from sglang_adaptive.lab.cpu_engine.server import free_port

SHIPPED = Path(__file__).parents[1] / "monitoring" / "prometheus.yml"
BINARY = "prometheus"
READY_SECONDS = 240.0


def installed() -> bool:
    return shutil.which(BINARY) is not None


class Prometheus(Client):
    """Watches servers and answers queries; a context manager with its data in *folder*."""

    def __init__(self, folder: Path, targets: Iterable[Client]) -> None:
        super().__init__("127.0.0.1", free_port())
        self.moment: float | None = None
        """Unix time of queries; None is now. If a busy machine misses a scrape, "now" has no data."""
        self._folder = folder
        config = yaml.safe_load(SHIPPED.read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(SHIPPED.with_name(name)) for name in config["rule_files"]]
        addresses = [f"{target.host}:{target.port}" for target in targets]
        config["scrape_configs"][0]["static_configs"] = [{"targets": addresses}]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Prometheus:
        folder = self._folder
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [BINARY, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address={self.host}:{self.port}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(f"Prometheus did not start:\n{(folder / 'prometheus.log').read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of every series of *expression* at the `moment`."""
        asked = {"query": expression} | ({} if self.moment is None else {"time": self.moment})
        answer = self.get(f"/api/v1/query?{urlencode(asked)}")
        return [(entry["metric"], float(entry["value"][1])) for entry in answer["data"]["result"]]

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return labels and (Unix time, value) pairs of every series between *start* and *end*, in seconds."""
        asked = urlencode({"query": expression, "start": start, "end": end, "step": step})
        found = self.get(f"/api/v1/query_range?{asked}")["data"]["result"]
        return [(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in found]

    def by(self, label: str, expression: str) -> dict[str, float]:
        """Return the values of *expression* keyed by one label."""
        return {labels[label]: value for labels, value in self.query(expression)}

    def _is_ready(self) -> bool:
        try:
            self.get("/-/ready")
        except Exception:  # not listening yet, or not ready yet
            return False
        return True
