"""``sglang-adaptive validate`` matches a server, and its description matches the policy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.policy.config import check_config, load_config, presets
from sglang_adaptive.policy.ema import AdaptiveStepSlot
from sglang_adaptive.policy.profile import shipped_config
from sglang_adaptive.sglang_plugin.launch import activation
from sglang_adaptive.validate import MEASURED, facts, main, words

BAD = [
    '{"throughput": {"lookup_texts": "a.jsonl"}}',
    '{"1": {"candidate_steps": [1, true]}}',
    '{"ema_alpha": 2, "1": {"candidate_steps": [1]}}',
    *("", "[1]", "{"),
]


def reading(config: dict[str, Any]) -> str:
    return "\n".join(words(facts(check_config(config, "test"))))


@pytest.mark.parametrize("text", BAD)
def test_complaint_and_exit_code_are_the_servers(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.json"
    path.write_text(text)
    asked = argparse.Namespace(
        speculative_adaptive=False,
        speculative_adaptive_config=str(path),
        speculative_num_steps=None,
        speculative_algorithm=None,
        skip_tokenizer_init=False,
    )
    with pytest.raises(SystemExit) as server:
        activation.check_command_line(asked)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said
    assert main([str(path), "--json"]) == server.value.code == 2
    told = capsys.readouterr()
    assert told.err == said
    assert json.loads(told.out)["error"] == said.removeprefix("sglang-adaptive: error: ").rstrip("\n")


def test_texts_that_a_server_would_load_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, texts = tmp_path / "my.json", tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"throughput": {"lookup_memory_mb": 1, "lookup_texts": str(texts)}}))
    texts.write_text('"one"\n{}\n')
    assert main([str(path)]) == 2
    assert f'{texts}: line 2: got "{{}}"; expected a JSON string or list of token ids a line' in capsys.readouterr().err
    texts.write_text('"one"\n[1, 2]\n')
    assert main([str(path)]) == 0


@pytest.mark.parametrize("preset", ["conservative.json", "aggressive.json"])
def test_moves_that_are_told_are_those_of_the_slot(preset: str) -> None:
    config = json.loads(shipped_config(preset).read_text())
    config = {key: {**slot, "ceiling_coeff": 0} if key.isdigit() else slot for key, slot in config.items()}
    checked = check_config({**config, "ema_alpha": 1.0, "warmup_batches": 0, "update_interval": 1}, preset)
    moves = 0
    for slot, told in zip(checked.options.slots, facts(checked)["slots"], strict=True):
        for move in told["moves"]:
            for at, there in ((move["rise_above"], move["up_to"]), (move["drop_at"], move["down_to"])):
                if at is None or there is None:
                    continue
                rises = there == move["up_to"]
                for average, expected in ((at, not rises), (at + 0.01, rises)):
                    live = AdaptiveStepSlot(move["steps"], slot)
                    accepted = round(100 * average)  # of a hundred requests in total
                    live.update([accepted // 100 + (index < accepted % 100) for index in range(100)])
                    # If it falls below several thresholds, it moves down several times.
                    moved = live.current_steps >= there if rises else live.current_steps <= there
                    assert moved is expected, (move, average)
                    moves += 1
    assert moves >= 12


def test_a_preset_says_whether_it_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert MEASURED.keys() <= presets().keys()
    for name, path in presets().items():
        for given in (name, str(path)):
            assert facts(load_config(given))["measured"] == MEASURED.get(name, "no")
    assert main(["deepseek-v4"]) == 0
    assert "Measured with this preset on a GPU: nobody has timed its steps.\n" in capsys.readouterr().out
    copied = tmp_path / "deepseek-v4.json"
    copied.write_text(presets()["deepseek-v4"].read_text())
    assert facts(load_config(copied))["measured"] is None and "timed" not in reading({})


def test_the_documentation_says_the_same() -> None:
    """The last column of both tables of presets."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text().splitlines()
    for name in presets():
        (row,) = [line for line in page if line.startswith("| [") and f"[`{name}`]" in line]
        assert row.rstrip(" |").rpartition(" | ")[2] == MEASURED.get(name, "no"), name


RANGES = {"2": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1]}, "9": {"candidate_steps": [0]}}
FAR = {"up_hysteresis": 0.6, "down_hysteresis": -1, "1": {"candidate_steps": [1, 3]}}
OPTIONS = {"throughput": {"candidate_steps": [1, 5], "probe_budget": 0, "profile_dir": "/profiles"}}
LOOKED_UP = (
    ({}, "Lookups are auto: rounds may verify 4, 8, 15 or 31 drafts copied"),
    ({}, "while live rounds take at least 4 ms.\nNGRAM, block drafters, DeepSeek-V4 and some"),
    ({}, "Texts of other requests are not searched: lookup_memory_mb is 0."),
    ({"lookup": True}, "Lookups are on: rounds may verify 4, 8, 15 or 31 drafts"),
    ({"lookup": True}, "however short rounds are.\nNGRAM, block drafters and DeepSeek-V4 refuse that"),
    ({"lookup": False}, "Lookups are off: lookup is false.\n"),
    ({"candidate_steps": [3, 8, 15]}, "Lookups are auto: rounds may verify 4 or 31 drafts"),
    ({"candidate_steps": [4, 8, 15, 31]}, "Lookups are off: candidate_steps has all of their numbers of drafts."),
    ({"lookup_memory_mb": 64}, "Texts of other requests are searched too, in 64 MB of each rank.\n"),
    ({"lookup_memory_mb": 64, "lookup_texts": "a.jsonl"}, "64 MB of each rank, from the start those of a.jsonl.\n"),
)
READINGS: list[tuple[dict[str, Any], str]] = [
    (RANGES, "Batch sizes 1 to 7: 1 or 3 draft steps, at first 1."),  # the middle of 0, 1, 3
    (RANGES, "Batch size 8: always 1 draft step."),
    (RANGES, "Batch sizes from 9: always no drafts."),
    (FAR, "1 to 3 never (the average would have to pass 1.10)"),
    (FAR, "3 to 1 never (the average would have to fall to -0.50)"),
    (FAR, "up_hysteresis is 0.6 instead of 0.0: added to the threshold for a rise (slot 1)"),
    (OPTIONS, "Always drafts: 0 is not among the depths."),
    (OPTIONS, "Never tries other depths"),
    (OPTIONS, "kept between server starts in /profiles."),
    (OPTIONS, "probe_budget is 0 instead of 0.005: largest share of time that probes may cost; 0 turns them off"),
    ({"watch": True}, "reloads the file"),
    ({"1": {"candidate_steps": [1, 3]}}, 'Lookups are off: the policy "ema" has none.'),
    *(({"throughput": options}, told) for options, told in LOOKED_UP),
]


@pytest.mark.parametrize(("config", "told"), READINGS)
def test_a_configuration_is_read_out(config: dict[str, Any], told: str) -> None:
    assert told in reading(config)


def test_what_is_as_by_default_is_not_told() -> None:
    assert all(reading(config).endswith("Nothing differs from the defaults.") for config in (RANGES, {}))
    assert "reloads" not in reading({"watch": False})


def test_what_the_server_is_told_differs_from_the_defaults_too() -> None:
    found = facts(check_config({"exact": False, "warm_up": False, "throughput": {"shrinkage": 0.5}}, "x"))
    changed = {entry["key"]: (entry["value"], entry["default"]) for entry in found["changed"]}
    assert changed == {"exact": (False, True), "warm_up": (False, None), "throughput.shrinkage": (0.5, 12.0)}
    told = list(words(found))
    (exact,) = [line for line in told if line.startswith("  exact is false instead of true: sample each token")]
    assert exact.endswith("; read only at server start")
    (warm_up,) = [line for line in words(facts(check_config({"warm_up": True}, "x"))) if "warm_up is true" in line]
    assert warm_up.endswith("; read only at server start")
