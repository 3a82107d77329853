"""A server without a GPU for SGLang's DSPARK profiler, with rounds of known duration.

DSPARK's worker needs a CUDA device, so this replaces the server. SGLang's own class keeps and dumps its records.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

GAMMA = 7
WIDTH = GAMMA + 1
ROUNDS_A_REQUEST = 64


def seconds(requests: int, tokens: int) -> float:
    """Return the duration of a round of *requests* with *tokens* to verify."""
    return 0.005 + 0.00002 * requests + 0.00003 * tokens


class DsparkServer:
    """The state behind the requests; `shares` are the requested budgets in order, as shares of all tokens."""

    def __init__(self, mode: str, table: Path | None, tokenizer: Path) -> None:
        from sglang.srt.speculative.dspark_components.dspark_observability import DsparkInfoDumper

        self.mode, self.table, self.tokenizer = mode, table, tokenizer
        self.shares: list[float] = []
        self._now, self._round = 0.0, 0
        self._record = DsparkInfoDumper(
            components={"core", "step_cpu_time"},
            gamma=GAMMA,
            verify_num_draft_tokens=WIDTH,
            attn_tp_rank=0,
            device=torch.device("cpu"),
            mode_value=mode,
            clock=lambda: self._now,
        )

    def info(self) -> dict[str, Any]:
        """Return the fields of /server_info that the profiler reads."""
        state = {
            "dspark_info_record": {**(self._record.dump() or {}), "simulate_acc_len": 1.0},
            "effective_max_running_requests_per_dp": 16,
            "cuda_graph_config": {"decode": {"bs": [1, 2, 4, 8, 16]}},
        }
        return {
            "speculative_algorithm": "DSPARK",
            "speculative_dspark_sps_table_path": None if self.table is None else str(self.table),
            "tokenizer_path": str(self.tokenizer),
            "internal_states": [state],
        }

    def generate(self, requests: int) -> None:
        """Run the rounds of a load of *requests*, after one prefill."""
        from sglang.srt.speculative.dspark_components.dspark_observability import DecodeStepObservation

        share = self.shares[-1] if self.shares else 1.0
        tokens = requests + int(share * requests * GAMMA)
        self._record.note_non_decode_step()
        some = torch.zeros(requests, dtype=torch.int64)
        for _ in range(ROUNDS_A_REQUEST):
            self._now += seconds(requests, tokens)
            self._round += 1
            counts = dict.fromkeys(("num_verify_tokens", "verify_tokens_local"), tokens)
            counts |= dict.fromkeys(("verify_tokens_dp_synced", "verify_tokens_graph_key"), tokens)
            unknown = (
                "budget",
                "lag_steps",
                "predicted_step_ms",
                "predicted_theta",
                "verify_lens",
                "confidence",
                "rids",
            )
            tensors = ("req_pool_indices", "prefix_lens", "draft_tokens", "bonus_tokens", "correct_len")
            self._record.observe_decode_step(
                DecodeStepObservation(
                    forward_ct=self._round,
                    bs=requests,
                    mode=self.mode,
                    **counts,
                    **dict.fromkeys(unknown),
                    **dict.fromkeys((*tensors, "cap_trim_lens", "commit_lens"), some),
                )
            )


@contextmanager
def serving(server: DsparkServer) -> Iterator[str]:
    """Serve *server* over HTTP; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(server.info())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            if self.path == "/generate":
                server.generate(len(body["input_ids"]))
            elif self.path == "/set_internal_state":
                share = body["server_args"]["dspark_force_budget_frac"]
                if share is None:  # SGLang's message has only numbers, so its own check never sees a null
                    return self._answer({"object": "error"}, 400)
                server.shares.append(share)
            self._answer([{"updated": True}])

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, found: Any, status: int = 200) -> None:
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
