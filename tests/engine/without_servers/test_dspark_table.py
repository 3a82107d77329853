"""`calibrate --dspark`: SGLang's profiler, SGLang's reader and SGLang's planner, with a fake server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from sglang_adaptive.calibrate import dspark
from sglang_adaptive.cli import main
from tests.engine.dspark_server import GAMMA, WIDTH, DsparkServer, seconds, serving
from tests.launch_lab import LaunchLab

pytestmark = pytest.mark.engine

SIZES = (4, 16)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of 4,096 words; the profiler draws its prompts from the middle of the vocabulary."""
    words = {f"w{index}": index for index in range(4096)}
    folder = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    return folder


@pytest.fixture
def start(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[DsparkServer, str]]]:
    """Start servers; each cell of the profiler takes one of its polls."""
    monkeypatch.setattr(dspark, "SECONDS_A_CELL", 0.0)
    monkeypatch.setattr(dspark, "SHARES", (0.25, 1.0))
    with ExitStack() as stack:

        def one(mode: str, table: Path | None = None) -> tuple[DsparkServer, str]:
            server = DsparkServer(mode, table, tokenizer)
            return server, stack.enter_context(serving(server))

        yield one


def calibrate(url: str, output: Path) -> int:
    sizes = ",".join(map(str, SIZES))
    return main(
        ["calibrate", "--rounds", "8", "--batch-sizes", sizes, "--url", url, "--dspark", "--output", str(output)]
    )


def budget(table: object, probability: float) -> int:
    """Return how many drafts of 16 requests SGLang's planner verifies if each is correct with *probability*."""
    from sglang.srt.speculative.dspark_components.dspark_planner import (
        DSparkScheduleConfig,
        compute_verify_token_budget,
    )

    survival = torch.full((16, GAMMA), probability).cumprod(dim=1)
    plan = compute_verify_token_budget(
        history_survival_probs=survival, sps_table=table, cfg=DSparkScheduleConfig(gamma=GAMMA)
    )
    return int(plan.budget)


@contextmanager
def forked(lab: LaunchLab) -> Iterator[None]:
    """Run SGLang's profiler as a fork that polls the server every 50 ms instead of every two seconds."""
    # SGLang reads the variable's first letter, but the variable is empty on the CPU engine.
    often = f"""
import os
del os.environ["CUDA_VISIBLE_DEVICES"]
import {dspark.PROFILER} as profiler
profiler.POLL_INTERVAL_SECONDS = 0.05
"""

    def run(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", dspark.PROFILER]
        outcome = lab.launch([f"{dspark.PROFILER}:cli_main", *command[3:]], often)
        print(outcome.output)
        return subprocess.CompletedProcess(command, outcome.code)

    with mock.patch.object(dspark.subprocess, "run", run):
        yield


def test_both_tables(
    start: Callable[..., tuple[DsparkServer, str]],
    lab: LaunchLab,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # This import takes seconds, and every pytest process collects this file.
    from sglang.srt.speculative.dspark_components.dspark_sps import (
        build_uninitialized_sps_table,
        load_sps_table_from_path,
    )

    _, url = start("static")
    by_tokens = tmp_path / "by-tokens.json"
    with forked(lab):
        assert calibrate(url, by_tokens) == 0
    read = load_sps_table_from_path(str(by_tokens))
    for size in SIZES:
        assert 1 / read.lookup(size * WIDTH) == pytest.approx(seconds(size, size * WIDTH))
    assert f"{1000 * seconds(16, 128):.2f}" in capsys.readouterr().out
    assert by_tokens.with_name(by_tokens.name + ".manifest.json").is_file()

    refused, url = start("compact")
    assert calibrate(url, tmp_path / "none.json") == 1 and not refused.shares
    assert "measure it with SGLANG_RAGGED_VERIFY_MODE=static first" in capsys.readouterr().err

    server, url = start("compact", by_tokens)
    by_both = tmp_path / "by-both.json"
    with forked(lab):
        assert calibrate(url, by_both) == 0
    assert set(server.shares[:-1]) == set(dspark.SHARES) and server.shares[-1] == 1.0
    assert "verifies all drafts, whatever its table says: restart it" in capsys.readouterr().err
    read = load_sps_table_from_path(str(by_both))
    times = [read.step_time(num_reqs=16, budget=drafts) for drafts in (28, 16 * GAMMA)]
    # The fit rounds tokens to 64.
    assert times == pytest.approx([seconds(16, 44), seconds(16, 128)], rel=0.1)
    flat = build_uninitialized_sps_table(max_batch_tokens=128)
    assert budget(flat, 0.3) == 16 * GAMMA > budget(read, 0.3) > 0
    assert budget(read, 0.99) > budget(read, 0.3)
