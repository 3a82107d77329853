"""What the CPU engine changes in SGLang's own processes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import zmq

from sglang_adaptive.lab.cpu_engine import plugin


def test_a_look_for_requests_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "WAIT_MILLISECONDS", 60_000)
    with zmq.Context() as context, context.socket(zmq.PULL) as here, context.socket(zmq.PUSH) as there:
        here.bind("inproc://requests")
        there.connect("inproc://requests")
        for receive, send in (("recv", there.send), ("recv_pyobj", there.send_pyobj)):
            later = threading.Timer(0.05, send, [b"request"])
            later.start()
            assert getattr(plugin._Waiting(here), receive)(flags=zmq.NOBLOCK) == b"request"
            later.join()


def test_a_prompt_without_tokens_is_rejected_and_others_are_left_to_sglang() -> None:
    def sglangs(req: SimpleNamespace, longest: int, truncates: bool) -> str | None:
        return "too long" if len(req.origin_input_ids) >= longest else None

    def told(*ids: int) -> str | None:
        return plugin._requiring_a_token(sglangs, SimpleNamespace(origin_input_ids=ids), 3, False)

    assert [told(), told(1), told(1, 2, 3)] == ["The input has no tokens.", None, "too long"]
