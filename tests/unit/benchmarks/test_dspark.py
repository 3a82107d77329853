"""The DSPARK benchmark: its servers' command lines, its draft as SGLang reads it, and what it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import dspark
from benchmarks.harness import shapes, start


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dspark.Run:
    monkeypatch.setattr(start, "begin", lambda given: 1e9)  # sets an alarm for the whole process
    argv = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"), "--models", str(tmp_path / "m")]
    (tmp_path / "work").mkdir()
    return dspark.Run(dspark.parser().parse_args(argv), argv)


def test_the_servers_differ_in_what_is_compared_alone(run: dspark.Run, tmp_path: Path) -> None:
    reference, everything, learnt = (run._server(one) for one in (dspark.REFERENCE, dspark.ALL, dspark.LEARNT))
    assert not {"--speculative-algorithm", "--speculative-adaptive-config"} & set(reference.command)
    assert "SGLANG_RAGGED_VERIFY_MODE" not in reference.environment
    for server in (everything, learnt):
        assert server.environment["SGLANG_RAGGED_VERIFY_MODE"] == "compact"
        assert str(tmp_path / "m" / "qwen3-8b-dspark") in server.command
    assert "--speculative-adaptive-config" in learnt.command and start.OURS in learnt.plugins
    assert "--speculative-adaptive-config" not in everything.command and start.OURS not in everything.plugins


def test_the_report(run: dspark.Run) -> None:
    passes = [
        {"server": server, "batch": 16, "when": when, "tokens": 100, "seconds": seconds}
        for server, when, seconds in (
            ("dspark-all", "turn 0", 2.0), ("dspark-learnt", "turn 0", 1.0), ("dspark-learnt", "learning", 99.0)
        )
    ]  # fmt: skip
    assert dspark.summary(passes) == {"16": {"dspark-all": 50.0, "dspark-learnt": 100.0, "gain": 1.0}}
    seen: dict[str, Any] = {"measured_rounds": 9, "tried_rounds": 4, "budget_is_on": False, "why_not": "so"}
    assert "off (so), ms {'8': 10.0}" in dspark.told({**seen, "seconds_by_tokens": {"8": 0.01}})
    assert dspark.main(["--host", "cpu"]) == 2


def test_the_draft_has_what_sglang_reads() -> None:
    draft = shapes.planned_draft_of(shapes.TARGETS["qwen3-8b"])
    # Matches the config of the draft that SGLang's documentation names (dspark_qwen3_14b_block7).
    assert (draft["architectures"], draft["block_size"], draft["enable_confidence_head"]) == (
        ["Qwen3DSparkModel"], 7, True,
    )  # fmt: skip
    assert draft["markov_rank"] > 0 and draft["markov_head_type"] == "vanilla"
    assert draft["dflash_config"]["mask_token_id"] < draft["vocab_size"]
