"""0007: Bad configurations are refused in one line."""

from __future__ import annotations

from pathlib import Path

from tests.patch_checks.parts import written
from tests.patch_checks.registry import kept, repaired

BAD = {
    "no such file": (None, "No such file"),
    "empty": ("", "not valid JSON"),
    "broken": ('{"1": {"candidate_steps": [1,}}', "line 1 column"),
    "not an object": ([1, 3], "must be a JSON object"),
    "a list as slot": ({"1": [1, 3]}, "BS 1"),
    "slot 0": ({"0": {"candidate_steps": [1]}}, "'0'"),
    "slot 08": ({"08": {"candidate_steps": [1]}}, "'08'"),
    "a bool as steps": ({"1": {"candidate_steps": [True, 3]}}, "candidate_steps"),
    "a misspelt key": ({"1": {"candidate_steps": [1]}, "warmup_batch": 3}, "'warmup_batch'"),
    "a misspelt key in a slot": ({"1": {"candidate_steps": [1], "ema": 0.3}}, "'ema'"),
    "alpha above 1": ({"1": {"candidate_steps": [1], "ema_alpha": 2}}, "ema_alpha"),
    "a NaN": ('{"1": {"candidate_steps": [1], "up_hysteresis": NaN}}', "up_hysteresis"),
    "an interval of 0": ({"1": {"candidate_steps": [1]}, "update_interval": 0}, "update_interval"),
    "a huge number": ('{"1": {"candidate_steps": [1]}, "ema_alpha": 1' + "0" * 400 + "}", "ema_alpha"),
}


@repaired
def a_bad_configuration_is_refused_in_one_line_with_its_key() -> None:
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    missed = []
    for name, (config, named) in BAD.items():
        with written("" if config is None else config) as path:
            if config is None:
                Path(path).unlink()
            try:
                resolve_candidate_steps_from_config(path)
                missed.append(f"{name}: accepted")
            except ValueError as error:
                if path not in str(error) or named not in str(error) or "\n" in str(error):
                    missed.append(f"{name}: {error}")
            except Exception as error:
                missed.append(f"{name}: {type(error).__name__}: {error}")
    assert not missed, "; ".join(missed)


@kept
def good_configurations_are_read() -> None:
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    every_key = {
        "1": {"candidate_steps": [0, 1, 7], "ema_alpha": 1, "up_hysteresis": -0.5, "ceiling_coeff": 1.5},
        "64": {"candidate_steps": [0]},
        "ema_alpha": 0.2,
        "update_interval": 5,
        "warmup_batches": 0,
        "down_hysteresis": -0.25,
    }
    with written(every_key) as path:
        assert resolve_candidate_steps_from_config(path) == [0, 1, 7]
    assert resolve_candidate_steps_from_config(None) == [0, 1, 3, 5, 7]
