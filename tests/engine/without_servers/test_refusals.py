"""Bad input through SGLang's real command line: one line, no traceback, exit code 2, before a model loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_adaptive.sglang_plugin.contract import supported
from tests.launch_lab import NO_MODEL, OURS, LaunchLab, Outcome

pytestmark = pytest.mark.engine


def launch(lab: LaunchLab, config: Path | str, *arguments: str, entry: str = "sglang.launch_server") -> Outcome:
    serve = ["serve"] if entry.endswith(":main") else []
    speculation = ["--speculative-algorithm", "EAGLE3", "--speculative-adaptive-config", str(config)]
    return lab.launch([entry, *serve, "--model-path", NO_MODEL, *speculation, *arguments])


def refusal(outcome: Outcome) -> str:
    """Return the one line of ours; fail unless the launch ended as a refusal does."""
    lines = [line for line in outcome.output.splitlines() if line.startswith(OURS)]
    assert outcome.code == 2, outcome.output
    assert "Traceback" not in outcome.output, outcome.output
    assert len(lines) == 1, outcome.output
    return lines[0].removeprefix(OURS)


SLOT = '"candidate_steps": [1, 3]'
BAD_FILES = {
    "empty": ("", "the file is empty"),
    "blank": (" \n ", "the file is empty"),
    "broken": ('{"1": {"candidate_steps": [1,}\n}', "broken JSON at line 1, column 30"),
    "broken later": ('{\n "1": {' + SLOT + "}\n", "line 3, column 1"),
    "list": ("[1, 3, 7]", "the top level is [1, 3, 7]"),
    "number": ("7", "the top level is 7"),
    "no slot": ('{"ema_alpha": 0.3}', "no slot"),
    "slot zero": ('{"0": {' + SLOT + "}}", ": 0: not a slot key"),
    "slot negative": ('{"-4": {' + SLOT + "}}", ": -4: not a slot key"),
    "slot leading zero": ('{"08": {' + SLOT + "}}", ": 08: not a slot key"),
    "slot fraction": ('{"1.5": {' + SLOT + "}}", ": 1.5: not a slot key"),
    "slot not an object": ('{"1": [1, 3]}', "got [1, 3]"),
    "no candidates": ('{"1": {"ema_alpha": 0.3}}', "candidate_steps"),
    "candidates empty": ('{"1": {"candidate_steps": []}}', "got []"),
    "candidates not a list": ('{"1": {"candidate_steps": 3}}', "got 3"),
    "candidates bool": ('{"1": {"candidate_steps": [true, 3]}}', "true"),
    "candidates float": ('{"1": {"candidate_steps": [1.0, 3]}}', "1.0"),
    "candidates negative": ('{"1": {"candidate_steps": [-1, 3]}}', "-1"),
    "candidates deep": ('{"1": {"candidate_steps": [1, 33]}}', "33"),
    "alpha zero": ('{"ema_alpha": 0, "1": {' + SLOT + "}}", "ema_alpha: got 0"),
    "alpha nan": ('{"ema_alpha": NaN, "1": {' + SLOT + "}}", "ema_alpha: got NaN"),
    "alpha text": ('{"1": {' + SLOT + ', "ema_alpha": "0.2"}}', 'got "0.2"'),
    "interval zero": ('{"1": {' + SLOT + ', "update_interval": 0}}', "update_interval: got 0"),
    "interval fraction": ('{"1": {' + SLOT + ', "update_interval": 2.5}}', "update_interval: got 2.5"),
    "warmup negative": ('{"warmup_batches": -1, "1": {' + SLOT + "}}", "warmup_batches: got -1"),
    "hysteresis infinite": ('{"1": {' + SLOT + ', "up_hysteresis": Infinity}}', "up_hysteresis: got Infinity"),
    "ceiling negative": ('{"1": {' + SLOT + ', "ceiling_coeff": -1}}', "ceiling_coeff: got -1"),
    "unknown key": ('{"ema_alhpa": 0.3, "1": {' + SLOT + "}}", "ema_alpha"),
    "unknown slot key": ('{"1": {' + SLOT + ', "update_intervall": 3}}', "update_interval"),
    "unknown policy": ('{"policy": "emma", "1": {' + SLOT + "}}", 'policy: got "emma"'),
    "key twice": ('{"1": {' + SLOT + '}, "1": {' + SLOT + "}}", "more than once"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(lab: LaunchLab, tmp_path: Path, case: str) -> None:
    text, told = BAD_FILES[case]
    config = tmp_path / "adaptive.json"
    config.write_text(text)
    line = refusal(launch(lab, config))
    assert line.startswith(f"{config}: ") and told in line and "; expected " in line


def test_missing_file(lab: LaunchLab, tmp_path: Path) -> None:
    assert "No such file" in refusal(launch(lab, tmp_path / "nowhere.json"))


def test_directory_for_a_file(lab: LaunchLab, tmp_path: Path) -> None:
    assert "is a directory" in refusal(launch(lab, tmp_path))


def test_bytes_that_are_not_text(lab: LaunchLab, tmp_path: Path) -> None:
    config = tmp_path / "adaptive.json"
    config.write_bytes(b'{"1": "\xff"}')
    assert "not UTF-8" in refusal(launch(lab, config))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    config = tmp_path / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [1, 3]}}))
    return config


def test_launch_depth_outside_the_candidates(lab: LaunchLab, good: Path) -> None:
    line = refusal(launch(lab, good, "--speculative-num-steps", "2"))
    assert line == "command line: --speculative-num-steps: got 2; expected a candidate step: 1, 3"


def test_sglang_serve_refuses_alike(lab: LaunchLab, tmp_path: Path) -> None:
    line = refusal(launch(lab, tmp_path / "nowhere.json", "--model-type", "llm", entry="sglang.cli.main:main"))
    assert "nowhere.json" in line


BREAKAGES = {
    "a hooked method is gone": (
        "from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2 as E; del E.apply_runtime_state",
        "EAGLEWorkerV2.apply_runtime_state is missing",
    ),
    "a called function lost a parameter": (
        "from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2 as E\n"
        "E.build_adaptive_runtime_state = lambda self, steps: None",
        "build_adaptive_runtime_state has no speculative_num_steps, speculative_num_draft_tokens, cuda_graph_bs",
    ),
    "a field is gone": (
        "import sglang.srt.managers.utils as u\n"
        "import dataclasses\n"
        "u.GenerationBatchResult = dataclasses.make_dataclass('GenerationBatchResult', ['accept_lens', 'cap_lens'])",
        "GenerationBatchResult has no speculative_num_draft_tokens",
    ),
}


@pytest.mark.parametrize("case", BREAKAGES)
def test_changed_sglang_is_refused_by_name(lab: LaunchLab, good: Path, case: str) -> None:
    breakage, told = BREAKAGES[case]
    outcome = lab.launch(
        ["sglang.launch_server", "--model-path", NO_MODEL, "--speculative-adaptive-config", str(good)],
        before=breakage,
    )
    line = refusal(outcome)
    assert told in line and f"this package supports {supported()}: " in line


def test_release_that_is_not_tested_is_served_and_named(lab: LaunchLab, good: Path) -> None:
    outcome = lab.launch(
        ["sglang.launch_server", "--model-path", NO_MODEL, "--speculative-adaptive-config", str(good)],
        before="import sglang; sglang.__version__ = '0.5.99'",
    )
    told = f"adaptive: sglang 0.5.99 fits; it is not tested, but its hooked functions are those of {supported()}"
    assert outcome.output.count(told) == 1 and OURS not in outcome.output


@pytest.mark.parametrize("case", BREAKAGES)
def test_changed_sglang_does_not_concern_a_server_that_is_not_adaptive(lab: LaunchLab, case: str) -> None:
    outcome = lab.launch(["sglang.launch_server", "--model-path", NO_MODEL], before=BREAKAGES[case][0])
    assert OURS not in outcome.output
    assert NO_MODEL in outcome.output  # it went on to SGLang's own complaint about the model
