"""Launches through SGLang's real command line.

Bad input gets one line, no traceback and exit code 2, before a model loads; what cannot adapt gets a warning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.serve_cpu import PLUGIN
from sglang_adaptive.sglang_plugin.contract import supported
from tests import forked_servers
from tests.forked_servers import NO_MODEL, OURS, Outcome
from tests.launch_lines.verdicts import HERE
from tests.releases import since_the_newest


def launch(config: Path | str, *arguments: str, entry: str = "sglang.launch_server", before: str = "") -> Outcome:
    serve = ["serve"] if entry.endswith(":main") else []
    speculation = ["--speculative-algorithm", "EAGLE3", "--speculative-adaptive-config", str(config)]
    return forked_servers.launch([entry, *serve, "--model-path", NO_MODEL, *speculation, *arguments], before)


def refusal(outcome: Outcome) -> str:
    """Return the one line of ours; fail unless the launch ended like a refusal."""
    lines = [line for line in outcome.output.splitlines() if line.startswith(OURS)]
    assert outcome.code == 2, outcome.output
    assert "Traceback" not in outcome.output, outcome.output
    assert len(lines) == 1, outcome.output
    return lines[0].removeprefix(OURS)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b'{"1": "\xff"}', "not UTF-8"), (b'{"ema_alpha": NaN, "1": {"candidate_steps": [1, 3]}}', "ema_alpha: got NaN")],
    ids=["bytes", "bad value"],
)
def test_bad_file(tmp_path: Path, content: bytes, told: str) -> None:
    """tests/unit/validate has one of each kind, and tests/unit/policy/test_config.py all."""
    config = tmp_path / "adaptive.json"
    config.write_bytes(content)
    line = refusal(launch(config))
    assert line.startswith(f"{config}: ") and told in line and "; expected " in line


ELSEWHERE = "import os, tempfile; os.chdir(tempfile.mkdtemp())"


def test_a_preset_is_accepted_from_any_folder() -> None:
    outcome = launch("throughput", before=ELSEWHERE)
    assert OURS not in outcome.output and NO_MODEL in outcome.output  # it reached SGLang's complaint about the model


def written(folder: Path, config: dict[str, Any]) -> Path:
    """Return a file with *config*."""
    path = folder / "adaptive.json"
    path.write_text(json.dumps(config))
    return path


def test_launch_depth_outside_the_candidates(tmp_path: Path) -> None:
    config = written(tmp_path, {"1": {"candidate_steps": [1, 3]}})
    line = refusal(launch(config, "--speculative-num-steps", "2"))
    assert line == "command line: --speculative-num-steps: got 2; expected a candidate step: 1, 3"


def test_lookups_beside_an_algorithm_that_verifies_none(tmp_path: Path) -> None:
    config = written(tmp_path, {"throughput": {"lookup": True}})
    line = refusal(launch(config, "--speculative-algorithm", "NGRAM"))
    assert line == f"{config}: throughput.lookup: got true; expected false with --speculative-algorithm NGRAM"


def test_texts_that_cannot_be_looked_up(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(f'"{"a" * (1 << 17)}"\n[1, 2]\n')
    options = {"lookup": True, "lookup_memory_mb": 1, "lookup_texts": str(file)}
    config = written(tmp_path, {"throughput": options})
    told = "has 131,076 bytes of text or tokens; expected 131,072 at most with a lookup_memory_mb of 1"
    assert refusal(launch(config)) == f"{file}: {told}"


def test_drafts_that_do_not_fit_into_deepseek_v4s_rings(tmp_path: Path) -> None:
    """The limit is the one that SGLang asserts; tests/launch_lines has the steps, which `doctor` asks in this way."""
    config = written(tmp_path, {"throughput": {"lookup": True}})
    outcome = launch(config, "--model-path", str(HERE / "configs" / "deepseek-v4"), "--speculative-algorithm", "EAGLE")
    told = "throughput.lookup: got true; expected false: DeepSeek-V4's rings hold 10 draft tokens"
    assert refusal(outcome) == f"{config}: {told}"


def test_sglang_serve_refuses_alike(tmp_path: Path) -> None:
    line = refusal(launch(tmp_path / "nowhere.json", "--model-type", "llm", entry="sglang.cli.main:main"))
    assert "nowhere.json: cannot be read: No such file or directory; expected a readable" in line


def test_a_line_that_cannot_adapt_goes_on_with_a_warning() -> None:
    outcome = launch("conservative", "--enable-lora")
    warnings = [line for line in outcome.output.splitlines() if "adaptive speculation is off" in line]
    assert len(warnings) == 1 and warnings[0].endswith("LoRA's graph metadata is built for one depth")
    assert OURS not in outcome.output and NO_MODEL in outcome.output


IGNORED = pytest.mark.xfail(strict=True, raises=AssertionError, reason="0.5.23: ignores the file without a word")
STOCK = f"import os; os.environ['SGLANG_PLUGINS'] = {PLUGIN!r}"


@pytest.mark.parametrize("before", [pytest.param("", id="ours"), pytest.param(STOCK, id="stock", marks=IGNORED)])
def test_configuration_alone_is_not_ignored(tmp_path: Path, before: str) -> None:
    outcome = launch(tmp_path / "nowhere.json", before=before)
    complaints = [line for line in outcome.output.splitlines() if "nowhere.json" in line and "server_args=" not in line]
    assert complaints and outcome.code != 0


@since_the_newest  # an older one lacks a required part
def test_release_that_is_not_tested_is_served_and_named() -> None:
    outcome = forked_servers.launch(
        ["sglang.launch_server", "--model-path", NO_MODEL, "--speculative-adaptive-config", "conservative"],
        before="import sglang; sglang.__version__ = '0.5.99'",
    )
    told = f"adaptive: sglang 0.5.99 fits; it is not tested, but its hooked functions are those of {supported()}"
    assert outcome.output.count(told) == 1 and OURS not in outcome.output
