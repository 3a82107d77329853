"""What calibration measures at a batch size, with which requests, and what remains if it ends early."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sglang_adaptive import calibrate, cli
from sglang_adaptive.calibrate import depths, room
from sglang_adaptive.client import NotReady
from sglang_adaptive.command_line import Interrupted
from sglang_adaptive.policy.profile import ProfileCell
from tests.refusals import refused


def state(**graphs: list[int] | None) -> dict[str, object]:
    tiers = [{"steps": int(name[1:]), "graph_batch_sizes": sizes} for name, sizes in graphs.items()]
    return {"tiers": [tier["steps"] for tier in tiers], "startup": {"tiers": tiers}}


def test_a_depth_is_measured_where_it_has_the_graph_that_the_batch_runs_in() -> None:
    pruned = state(_0=[1, 2, 4, 8], _3=[1, 2, 4, 8], _7=[1, 2], _9=[])
    assert [depths(pruned, size) for size in (1, 2, 3, 8)] == [[0, 3, 7], [0, 3, 7], [0, 3], [0, 3]]
    assert depths(pruned, 9) == [0, 3, 7, 9]  # beyond the largest graph all run without graphs


def test_lookup_rounds_are_no_depths() -> None:
    rounds = {"lookup_rounds": {"requests": {"15": [1, 8], "31": [1, 4]}}}
    assert depths({**state(_0=[1], _3=[1], _15=[1], _31=[1]), **rounds}, 1) == [0, 3]


def test_requests_are_as_long_as_the_cache_holds_of_a_whole_batch() -> None:
    info = {"max_total_num_tokens": 40_000}
    assert 64 * (room(info, 64) + 128) < 40_000 < 64 * (1024 + 128)
    with pytest.raises(NotReady, match="128 requests do not fit into the server's KV cache of 40000 tokens"):
        room(info, 128)


def info(running: int | None = 32, slots: int = 65_536) -> dict[str, Any]:
    return {"max_total_num_tokens": slots, "internal_states": [{"effective_max_running_requests_per_dp": running}]}


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (info(), "error: --batch-sizes: got 64, but http://127.0.0.1:1 runs 32 requests at once\n"),
        (info(None, 2000), "64 requests do not fit into the server's KV cache of 2000 tokens"),
    ],
    ids=["more than run at once", "more than the cache holds"],
)
def test_a_batch_that_cannot_run_is_refused_before_another_is_measured(
    known: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SimpleNamespace(info=known, state=state(_0=None))
    monkeypatch.setattr(calibrate, "AdaptiveServer", lambda client: server)
    assert told in refused(capsys, ["calibrate", "--url", "http://127.0.0.1:1", "--batch-sizes", "1,64"], code=1)


@pytest.mark.parametrize("ends", [NotReady("the server is gone"), Interrupted(signal.SIGTERM)])
def test_what_was_measured_is_kept_when_it_ends_early(
    ends: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = {"target_model": "t", "draft_model": "d", "gpu_name": "g", "gpu_count": 1, "tp_size": 1}
    told = {**state(_0=None, _3=None), "policy": "throughput", "profile_key": {**key, "attention_backend": "fa3"}}
    done = [ProfileCell(1, 0, 0.004, 40), ProfileCell(1, 3, 0.005, 40), ProfileCell(2, 0, 0.0045, 40)]
    server = Mock(state=told, info=info())
    monkeypatch.setattr(calibrate, "_cell", Mock(side_effect=[*done, ends, ends]))
    monkeypatch.setattr(calibrate, "SteadyLoad", lambda *_: nullcontext())
    monkeypatch.setattr(calibrate, "AdaptiveServer", lambda client: server)
    path = tmp_path / "profile.json"
    asked = ["--url", "http://127.0.0.1:1", "--batch-sizes", "1,2", "--output", str(path)]
    assert calibrate.main(asked) == 1
    shown = capsys.readouterr()
    assert "what had been measured was kept" in shown.err and "batch 2            4.50         -" in shown.out
    assert len(json.loads(path.read_text())["cells"]) == 3
    server.put_back.assert_called_once_with()
    assert cli.main(["calibrate", *asked]) == (1 if isinstance(ends, NotReady) else 128 + signal.SIGTERM)
