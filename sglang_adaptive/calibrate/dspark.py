"""``calibrate --dspark``: runs SGLang's own profiler for the table that its DSPARK planner reads.

In each round DSPARK chooses how many drafts to verify, from a table of round times that SGLang does not ship. SGLang
0.5.23 has a profiler for it (`sglang.benchmark.dspark_sps_profiler`), which measures a live server. This module checks
the profiler's preconditions and restores the server's former state as far as SGLang allows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sglang_adaptive.adaptive_server import KeyAsked, NotReady, most_running, read_info
from sglang_adaptive.calibrate.measure import check_sizes
from sglang_adaptive.client import Client, RequestError

PROFILER = "sglang.benchmark.dspark_sps_profiler"
RECORD = "dspark_info_record"
SECONDS_A_CELL = 10.0
"""The profiler's default for the minimum seconds of steady rounds."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the drafts that a compact server verifies while it is measured."""

STATIC, COMPACT = "static", "compact"
LAUNCH_WITH = "SGLANG_DSPARK_ENABLE_SPS_RECORD=1 SGLANG_SIMULATE_ACC_LEN=1 SGLANG_RAGGED_VERIFY_MODE=static"


def measure(client: Client, output: Path, sizes: Sequence[int] | None, rounds: int) -> dict[str, Any]:
    """Measure the server of *client*; write *output*, and the profiler's report next to it.

    A server in static mode yields round times by verified tokens, one in compact mode by requests and tokens. *sizes*
    are requests per replica, None for the profiler's own ladder; *rounds* is the minimum timed at each. Returns the
    table as JSON builtins. Raises NotReady if the server cannot be measured this way, or the table would price nothing.
    """
    try:
        info = read_info(client)
    except KeyAsked:
        line = f"{client.url}: it asks for a key, which SGLang's profiler does not send: measure a server without one"
        raise NotReady(line) from None
    mode = ready(info, client.url)
    if sizes:
        check_sizes(info, sizes, client.url)
    given = ["--batch-size", *map(str, sizes)] if sizes else ["--max-batch-size", str(most_requests(info))]
    with tempfile.TemporaryDirectory(prefix="sglang-adaptive-") as folder:
        made = Path(folder, output.name)
        words = ["all", "--base-url", client.url, "--out", str(made), "--no-plot", *given]
        words += ["--min-steady-steps", str(rounds), "--min-steady-seconds", str(SECONDS_A_CELL)]
        if mode == COMPACT:
            words += ["--fracs", *map(str, SHARES)]
        try:
            done = subprocess.run([sys.executable, "-m", PROFILER, *words], check=False)
        finally:
            if mode == COMPACT:
                _release(client)
        if done.returncode:
            raise NotReady(f"SGLang's profiler ended with code {done.returncode}; its output is above")
        table: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
        if not prices(table):
            raise NotReady(
                "the table would give every draft the same price, so SGLang would verify all of them; expected "
                "--batch-sizes whose tokens differ by more than 64"
            )
        for path in (made, made.with_name(made.name + ".manifest.json")):
            shutil.move(path, output.with_name(path.name))
    return table


def ready(info: Mapping[str, Any], url: str) -> str:
    """Return the mode, STATIC or COMPACT, of the server whose /server_info is *info*. Raises NotReady."""
    if info.get("speculative_algorithm") != "DSPARK":
        raise NotReady(f"{url} runs --speculative-algorithm {info.get('speculative_algorithm')}; expected DSPARK")
    records = [state.get(RECORD) for state in info["internal_states"]]
    if None in records or any(record.get("simulate_acc_len") != 1.0 for record in records):
        raise NotReady(f"{url} keeps no record of uniform rounds: start it with {LAUNCH_WITH}")
    mode = str(records[0]["mode"])
    if mode not in (STATIC, COMPACT):
        raise NotReady(f"{url} runs SGLANG_RAGGED_VERIFY_MODE={mode}, where a smaller budget saves no time")
    if mode == COMPACT and info.get("speculative_dspark_sps_table_path") is None:
        # DSparkVerifyPlanner.schedule_layout then verifies all drafts, regardless of the profiler's budget, and the
        # profiler's check (graph tokens not below the requested ones) passes.
        raise NotReady(
            f"{url} has no --speculative-dspark-sps-table-path, so it verifies all drafts whatever the budget: "
            "measure it with SGLANG_RAGGED_VERIFY_MODE=static first, and give it that table"
        )
    return mode


def most_requests(info: Mapping[str, Any]) -> int:
    """Return the maximum requests of a replica that run at once inside its CUDA graphs."""
    state = info["internal_states"][0]
    decode = (state.get("cuda_graph_config") or {}).get("decode") or {}
    limits = [most_running(info), max(decode.get("bs") or [0]), decode.get("max_bs")]
    return min((int(limit) for limit in limits if limit and limit > 0), default=48)


def prices(table: Mapping[str, Any]) -> bool:
    """Return whether the times of *table* differ between few and many verified tokens."""
    return len(table["m_probes"] if "bias_seconds" in table else table["sample_batch_tokens"]) > 1


def shown(table: Mapping[str, Any]) -> str:
    """Return *table* as aligned text, in milliseconds per round."""
    if "bias_seconds" not in table:
        seconds = [1 / rate for rate in table["sample_steps_per_sec"]]
        return _rows("verified tokens", table["sample_batch_tokens"], seconds, "ms per round")
    start = f"{1000 * table['bias_seconds']:.2f} ms per round, plus:"
    by_requests = _rows("requests", table["bs_probes"], table["alpha_seconds"], "ms")
    return "\n".join([start, by_requests, _rows("verified tokens", table["m_probes"], table["theta_seconds"], "ms")])


def _rows(name: str, counts: Sequence[int], seconds: Sequence[float], unit: str) -> str:
    rows = [f"{count:>{len(name)}}{1000 * one:>{len(unit) + 6}.2f}" for count, one in zip(counts, seconds, strict=True)]
    return "\n".join([f"{name}{unit:>{len(unit) + 6}}", *rows])


def _release(client: Client) -> None:
    """Let the server verify all drafts; the profiler leaves its last share in force.

    SGLang 0.5.23's scheduler would take null, to plan again, but SGLang rejects null before it gets there.
    """
    try:
        client.post("/set_internal_state", {"server_args": {"dspark_force_budget_frac": 1.0}})
        print(f"{client.url} verifies all drafts, whatever its table says: restart it", file=sys.stderr)
    except (RequestError, OSError, HTTPException):
        print(f"{client.url} may still verify a fixed share of the drafts: restart it", file=sys.stderr)
