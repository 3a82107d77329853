"""A prefill server and the decode server behind it."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sglang_adaptive.client import Client, RequestError
from tests.engine.workload import Case, Output

ROOMS = itertools.count(1)
Server = TypeVar("Server", bound=Client)


@dataclass
class Apart(Generic[Server]):
    """A prefill server and the decode server behind it."""

    prefill: Server
    decode: Server
    port: int
    """Where the prefill server tells decode servers about itself."""

    def ask(self, case: Case, pool: ThreadPoolExecutor, rid: str | None = None) -> Future[dict[str, Any]]:
        """Send *case* to both as a router does; return the decode server's answer to come."""
        sampling = {"temperature": 0, "max_new_tokens": case.max_new_tokens, **case.sampling}
        meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.port, "bootstrap_room": next(ROOMS)}
        body = {"text": case.prompt, "sampling_params": sampling, "rid": rid, **meeting}

        def prefill() -> None:
            with suppress(OSError, RequestError):  # a test stops this server
                self.prefill.post("/generate", body)

        pool.submit(prefill)
        return pool.submit(self.decode.post, "/generate", body)

    def run(self, cases: list[Case]) -> list[Output]:
        with ThreadPoolExecutor(2 * len(cases)) as pool:
            return [Output.of(answer.result()) for answer in [self.ask(case, pool) for case in cases]]
