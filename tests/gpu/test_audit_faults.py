"""Both audits find a fault that this package repairs on a GPU: Mamba2 states of another width than the buffer's.

A server of Nemotron-H's small shape runs without the repair: below the widest verify, all requests of a batch except
the first continue from wrong states.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import architectures
from benchmarks.harness import texts
from sglang_adaptive.cli import main
from tests.engine.workload import adaptive, wait_until
from tests.gpu.servers import START_SECONDS

TOKENS, REQUESTS, WITHIN = 48, 8, 64
"""Tokens per answer, requests per batch, and finished requests within which the server must prove the fault."""


def test_states_of_another_width_are_found(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    (family,) = architectures.named(architectures.FAMILIES, ["nemotron-h-uncured"])
    prompts = texts.prompts(REQUESTS, 64)
    asked, told = tmp_path / "prompts.jsonl", tmp_path / "audit.json"
    asked.write_text("\n".join(json.dumps({"input_ids": prompt}) for prompt in prompts))
    server = architectures.family_server(family, tmp_path, architectures.ADAPTIVE, cpu=False)
    config = json.loads((tmp_path / "configs" / f"{family.name}.json").read_text())
    server.launch()
    try:
        server.wait(time.monotonic() + START_SECONDS)
        client = server.client
        few = ("--passes", "1", "--minutes", "5", "--tokens", str(TOKENS), "--at-once", str(REQUESTS))
        code = main(["audit", "--url", client.url, "--prompts", str(asked), *few, "--json", str(told)])
        findings = json.loads(told.read_text())
        wrong = findings["wrong"]
        for name, figure in (("exit code", code), ("wrong", len(wrong)), ("first wrong", wrong[:1])):
            record_property(name, figure)
        for name in ("texts", "left_out"):
            record_property(name.replace("_", " "), findings[name])
        assert code == 1 and wrong

        client.configure({**config, "audit": {"share": 1.0, "when": "idle"}})
        client.force_steps(1)
        done = 0
        while not (proved := adaptive(client)["audit"]["proved"]) and done < WITHIN:
            texts.ask(client, prompts, TOKENS)
            done += REQUESTS
            wait_until(lambda: not adaptive(client)["audit"]["waiting"], "nothing waits to be decoded again")
        record_property("requests until proved", done)
        record_property("proved", proved)
        assert proved
    finally:
        server.stop(grace=0)
