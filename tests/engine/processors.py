"""Custom logit processors that tests send with requests, in their own module so that servers import no test."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Banned(CustomLogitProcessor):  # type: ignore[misc]
    """Bans the tokens in its parameters."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            logits[row, parameters["banned"]] = -float("inf")
        return logits


class Countdown(CustomLogitProcessor):  # type: ignore[misc]
    """Reads its request: every third token is the one in its parameters."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, parameters in enumerate(custom_param_list):
            if len(parameters["__req__"].output_ids) % 3 == 2:
                logits[row] = -float("inf")
                logits[row, parameters["token"]] = 0.0
        return logits


def to_str(processor: type) -> str:
    """Return *processor* as a request sends it: by value, so that no server must import this module."""
    import dill

    dill.settings["recurse"] = True
    processor.__module__ = "__main__"
    return str(processor.to_str())  # type: ignore[attr-defined]
