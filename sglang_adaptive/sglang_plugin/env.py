"""All environment variables of the package that a server reads."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the environment."""

    name: str

    def get(self) -> str | None:
        """Return its value; None where it is not set."""
        return os.environ.get(self.name)

    def set(self, value: str | None) -> None:
        """Set it for this process and the children that it starts; None unsets it."""
        if value is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = value


OFF = Variable("SGLANG_ADAPTIVE_OFF")
"""Names of features to turn off, separated by commas (`features.FEATURES`)."""
PROFILE_DIR = Variable("SGLANG_ADAPTIVE_PROFILE_DIR")
"""Folder of cost profiles; ``throughput.profile_dir`` in the configuration overrides it."""
ACTIVE = Variable("SGLANG_ADAPTIVE_ACTIVE")
"""Set by the launcher of an adaptive server for its children; not for users."""
HTTP_APPLICATION = Variable("SGLANG_ADAPTIVE_HTTP_APP")
"""Set by the launcher for HTTP workers: the application that SGLang would serve."""

VARIABLES = (OFF, PROFILE_DIR, ACTIVE, HTTP_APPLICATION)
