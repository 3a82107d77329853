"""What `calibrate --dspark` requires of a server before it measures it, and of a table before it keeps it.

tests/engine/without_servers/test_dspark_table.py tests SGLang's profiler, reader and planner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.adaptive_server import NotReady
from sglang_adaptive.calibrate.command import main
from sglang_adaptive.calibrate.dspark import most_requests, prices, ready, shown


def info(**record: Any) -> dict[str, Any]:
    state = {"dspark_info_record": {"mode": "static", "simulate_acc_len": 1.0, **record}}
    return {"speculative_algorithm": "DSPARK", "speculative_dspark_sps_table_path": None, "internal_states": [state]}


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ({**info(), "speculative_algorithm": "EAGLE3"}, "EAGLE3; expected DSPARK"),
        ({**info(), "internal_states": [{}]}, "SGLANG_DSPARK_ENABLE_SPS_RECORD=1"),
        ({**info(), "internal_states": [*info()["internal_states"], {}]}, "SGLANG_DSPARK_ENABLE_SPS_RECORD=1"),
        (info(simulate_acc_len=None), "SGLANG_SIMULATE_ACC_LEN=1"),
        (info(simulate_acc_len=3.0), "SGLANG_SIMULATE_ACC_LEN=1"),
        (info(mode="cap-accept"), "saves no time"),
        (info(mode="compact"), "SGLANG_RAGGED_VERIFY_MODE=static first"),
    ],
)
def test_server_that_cannot_be_measured(server: dict[str, Any], told: str) -> None:
    with pytest.raises(NotReady, match=told):
        ready(server, "http://h:1")


def test_servers_that_can() -> None:
    assert ready(info(), "http://h:1") == "static"
    assert ready({**info(mode="compact"), "speculative_dspark_sps_table_path": "t.json"}, "http://h:1") == "compact"


def test_no_more_requests_than_run_at_once_and_have_graphs() -> None:
    def most(**state: Any) -> int:
        return most_requests({"internal_states": [state]})

    graphs = {"decode": {"bs": [1, 8, 32], "max_bs": 160}}
    assert most(effective_max_running_requests_per_dp=48, cuda_graph_config=graphs) == 32
    assert most(effective_max_running_requests_per_dp=16, cuda_graph_config=graphs) == 16
    assert most(effective_max_running_requests_per_dp=16, cuda_graph_config={"decode": {"bs": None, "max_bs": 8}}) == 8
    assert most(effective_max_running_requests_per_dp=24) == 24


def test_tables_of_one_price() -> None:
    rows = {"sample_batch_tokens": [8, 64], "sample_steps_per_sec": [200.0, 100.0], "max_batch_tokens": 64}
    both = {"bias_seconds": 0.004, "bs_probes": [1, 8], "alpha_seconds": [0.0, 0.001]}
    both |= {"m_probes": [0, 64], "theta_seconds": [0.0, 0.002]}
    assert prices(rows) and prices(both)
    assert not prices({**rows, "sample_batch_tokens": [8]}) and not prices({**both, "m_probes": [0]})
    assert "10.00" in shown(rows).splitlines()[-1] and "2.00" in shown(both).splitlines()[-1]


@pytest.mark.parametrize("more", [[], ["--output", "x.json", "--png", "x.png"]])
def test_bad_usage(more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--url", "http://127.0.0.1:9", "--dspark", *more]) == 2
    assert "--dspark: expected --output FILE" in capsys.readouterr().err
