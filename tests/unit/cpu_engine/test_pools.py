"""The CPU engine's KV pool: SGLang's own, all zeros, whose memory is only allocated when written."""

from __future__ import annotations

import psutil
import pytest
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from sglang_adaptive.lab.cpu_engine.replaced import create_buffers

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
