"""Runs SGLang's sampling functions eagerly: compiling them at first use takes longer than these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield
