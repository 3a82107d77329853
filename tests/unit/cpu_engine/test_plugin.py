"""What the CPU engine changes in SGLang's processes: waiting for requests, layers, and the KV pool."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import psutil
import pytest
import torch
import zmq
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from sglang_adaptive.lab.cpu_engine import plugin
from sglang_adaptive.lab.cpu_engine.replaced import create_buffers
from tests import checks


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


SLOTS, HEADS, SIZE, LAYERS = 65_536, 4, 64, 4
WHOLE = 2 * SLOTS * HEADS * SIZE * LAYERS * 4
"""Bytes of all buffers, 537 MB."""


def test_a_pool_takes_the_memory_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, create = torch.zeros, MHATokenToKVPool._create_buffers
    monkeypatch.setattr(MHATokenToKVPool, "_create_buffers", lambda pool: create_buffers(create, pool))
    before = psutil.Process().memory_info().rss
    pool = MHATokenToKVPool(
        SLOTS, 1, torch.float32, HEADS, SIZE, LAYERS, "cpu", enable_memory_saver=False, enable_alt_stream=False
    )
    taken = psutil.Process().memory_info().rss - before
    assert taken < WHOLE / 8
    assert torch.zeros is usual
    assert len(pool.k_buffer) == LAYERS and pool.k_buffer[0].shape[1:] == (HEADS, SIZE)
    assert pool.k_buffer[0].dtype == torch.float32 and not pool.v_buffer[-1].any()
    pool.k_buffer[1][7] = 3.0
    assert pool.k_buffer[1].sum() == 3.0 * HEADS * SIZE and not pool.k_buffer[0].any()


SCRIPT = """
import itertools, json
import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang_adaptive.lab.cpu_engine import replaced

torch.manual_seed(0)
asked = {"norm": 0, "rotate": 0}
differ = []

def own(name, method):
    def original(*arguments, **more):
        asked[name] += 1
        return method(*arguments, **more)
    return original

def compare(name, method, ours, layer, *arguments):
    wanted, found = method(layer, *arguments), ours(own(name, method), layer, *arguments)
    pairs = zip(wanted, found) if isinstance(wanted, tuple) else [(wanted, found)]
    if not all(torch.equal(one, other) and one.dtype == other.dtype for one, other in pairs):
        differ.append([name, str(layer), [str(getattr(each, "shape", each)) for each in arguments]])

with torch.no_grad():
    for tokens, hidden, dtype in itertools.product((1, 8, 65), (128, 576), (torch.float32, torch.bfloat16)):
        for more in ({}, {"var_hidden_size": hidden // 2}, {"cast_x_before_out_mul": True}, {"fp32_residual": True}):
            layer = RMSNorm(hidden, eps=1e-5, **more)
            layer.weight.data.normal_()
            x, residual = torch.randn(2, tokens, hidden).to(dtype)
            for given in ((x,), (x, residual), (x, residual, None), (x, residual, x)):
                compare("norm", RMSNorm.forward_native, replaced.norm, layer, *given)
    for tokens, size, turned, near in itertools.product((1, 8, 65), (32, 64), (1, 2), (True, False)):
        layer = RotaryEmbedding(size, size // turned, 512, 10000, near, torch.float32)
        qkv = torch.randn(tokens, 7 * size)
        query, key, _ = qkv.split([4 * size, 2 * size, size], dim=-1)
        positions = torch.randint(512, (tokens,))
        compare("rotate", RotaryEmbedding.forward_native, replaced.rotate, layer, positions, query, key)
    nothing = replaced.norm(None, RMSNorm(128), torch.empty(0, 128)), *replaced.rotate(
        None, RotaryEmbedding(32, 32, 512, 10000, True, torch.float32), positions[:0], query[:0, :128], key[:0, :64]
    )
print(json.dumps({"differ": differ, "asked": asked, "nothing": [part.shape for part in nothing]}))
"""


def test_results_are_the_same_bits() -> None:
    found = checks.scripted(SCRIPT)
    assert found["differ"] == []
    # Of 12 sizes of 4 norms with 4 inputs each, ours handles 6 sizes, one norm and 3 inputs; of 24 rotations, a
    # quarter.
    assert found["asked"] == {"norm": 12 * 16 - 6 * 3, "rotate": 24 - 6}
    assert found["nothing"] == [[0, 128], [0, 128], [0, 64]], "of no tokens"
