"""The check of a configuration file."""

from __future__ import annotations

from sglang_adaptive.command_line import listed
from sglang_adaptive.doctor.check import OK, PROBLEM, Check
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError


def check(path: str) -> Check:
    """Return the check of the file *path*, made with the server's code."""
    try:
        config = load_config(path)
    except ConfigError as error:
        return Check("configuration", PROBLEM, str(error))
    depths = listed(config.candidate_steps)
    return Check("configuration", OK, f"{path}: policy {config.policy}, depths {depths}; `validate` says more")
