"""A server with one key for requests and another for changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_adaptive.cli import main
from sglang_adaptive.client import ADMIN_PATHS, Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import ADMIN_KEY, KEY, LAYERS
from tests.engine.workload import adaptive

FEW = ("--batch-sizes", "1", "--rounds", "4", "--tokens", "64", "--output", "profile.json")
ASKED = "it asks for a key: give the right one with --api-key"
ADMIN_ASKED = "it asks for the administrator's key: give the right one with --admin-api-key"


def test_each_call_of_the_client_has_the_key_that_sglang_asks_for(layers: CpuServer) -> None:
    assert layers.server_info()["internal_states"]
    assert layers.generate("a", 4)["meta_info"]["completion_tokens"] == 4
    layers.flush_cache()
    layers.abort("nobody")
    assert layers.force_steps(3) == layers.force_steps(None) == [True]


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_the_user_s_key_does_not_open_an_administrator_s_path(layers: CpuServer, path: str) -> None:
    with pytest.raises(RequestError, match=f"POST {path}: 401 "):
        Client.from_url(layers.url, api_key=KEY).post(path, {})


def test_calibrate_takes_both(
    layers: CpuServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_API_KEY", KEY)
    words = ["calibrate", "--url", layers.url, *FEW]
    for more in ([], ["--admin-api-key", "wrong"]):
        assert main([*words, *more]) == 1
        assert capsys.readouterr().err.endswith(f"{layers.url}: {ADMIN_ASKED}\n")
    assert main([*words, "--api-key", "wrong", "--admin-api-key", ADMIN_KEY]) == 1
    assert capsys.readouterr().err.endswith(f"{layers.url}: {ASKED}\n")
    assert main([*words, "--admin-api-key", ADMIN_KEY]) == 0
    assert {cell["steps"] for cell in json.loads(Path("profile.json").read_text())["cells"]} == set(range(LAYERS + 1))
    assert adaptive(layers)["forced_steps"] is None
