"""The campaign's GPU servers: their command line and environment, because CI has no GPU to start one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_adaptive.serve_cpu import STAND_IN, environment
from tests.campaign import gpu, servers


def test_a_gpu_server_has_nothing_of_the_cpu_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "used", True)
    server = servers.adapting(tmp_path, PYTHONPATH=environment()["PYTHONPATH"])
    assert isinstance(server, gpu.GpuServer)
    assert server.command[1:3] == ["-m", "sglang.launch_server"]
    assert not {"--device", "cpu_torch"} & set(server.command)
    assert str(STAND_IN) not in server.environment["PYTHONPATH"]
    flags = [word for word in server.command if word.startswith("--")]
    assert len(flags) == len(set(flags)), "a default does not stand beside the variant's own value"
