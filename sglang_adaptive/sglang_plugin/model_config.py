"""The configuration files of models, as a launch line names them."""

from __future__ import annotations

from typing import Any


def model_config(path: str | None) -> dict[str, Any]:
    """Return the configuration file of the model at *path*; empty where it is not on this machine."""
    from transformers import PretrainedConfig

    if path is None:
        return {}
    try:
        found: dict[str, Any] = PretrainedConfig.get_config_dict(path, local_files_only=True)[0]
    except OSError:
        return {}
    return found
