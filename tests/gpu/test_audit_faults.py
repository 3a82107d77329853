"""Both audits find a fault that this package repairs on a GPU: Mamba2 states of another width than the buffer's.

A server of Nemotron-H's small shape runs without the repair: below the widest verify, all requests of a batch except
the first continue from wrong states.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import architectures
from benchmarks.harness import texts
from sglang_adaptive.cli import main
from tests.engine.workload import adaptive, wait_until
from tests.gpu.servers import START_SECONDS

TOKENS, REQUESTS, WITHIN = 48, 8, 64
"""Tokens per answer, requests per batch, and finished requests within which the server must prove the fault."""


def test_states_of_another_width_are_found(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    (family,) = architectures.named(architectures.FAMILIES, ["nemotron-h-uncured"])
    found = find(family, tmp_path, cpu=False)
    for name, number in found.items():
        record_property(name, number)
    assert found["exit code"] == 1 and found["wrong"] > 0
    assert found["proved"] is not None and found["requests until proved"] <= WITHIN


def find(family: Any, folder: Path, cpu: bool) -> dict[str, Any]:
    """Return what ``audit`` reports about a server of *family*, and what the audit inside it reports."""
    prompts = texts.prompts(REQUESTS, 64)
    asked, told = folder / "prompts.jsonl", folder / "audit.json"
    asked.write_text("\n".join(json.dumps({"input_ids": prompt}) for prompt in prompts))
    server = architectures.family_server(family, folder, architectures.ADAPTIVE, cpu)
    config = json.loads((folder / "configs" / f"{family.name}.json").read_text())
    server.launch()
    try:
        server.wait(time.monotonic() + START_SECONDS)
        client = server.client
        few = ("--passes", "1", "--minutes", "5", "--tokens", str(TOKENS), "--at-once", str(REQUESTS))
        code = main(["audit", "--url", client.url, "--prompts", str(asked), *few, "--json", str(told)])
        findings = json.loads(told.read_text())

        client.configure({**config, "audit": {"share": 1.0, "when": "idle"}})
        client.force_steps(1)
        done = 0

        def inside() -> dict[str, Any]:
            return adaptive(client)["audit"]

        while not inside()["proved"] and done < WITHIN:
            texts.ask(client, prompts, TOKENS)
            done += REQUESTS
            wait_until(lambda: not inside()["waiting"], "nothing waits to be decoded again")
        return {
            "exit code": code,
            "texts": findings["texts"],
            "wrong": len(findings["wrong"]),
            "first wrong": findings["wrong"][:1],
            "left out": findings["left_out"],
            "requests until proved": done,
            "proved": inside()["proved"],
        }
    finally:
        server.stop(grace=0)
