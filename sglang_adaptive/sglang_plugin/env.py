"""All environment variables of the package that a server reads."""

from __future__ import annotations

OFF = "SGLANG_ADAPTIVE_OFF"
"""Names of features to turn off, separated by commas (`features.FEATURES`)."""
PROFILE_DIR = "SGLANG_ADAPTIVE_PROFILE_DIR"
"""Folder of cost profiles; ``throughput.profile_dir`` in the configuration overrides it."""
ACTIVE = "SGLANG_ADAPTIVE_ACTIVE"
"""Set by the launcher of an adaptive server for its children; not for users."""
HTTP_APPLICATION = "SGLANG_ADAPTIVE_HTTP_APP"
"""Set by the launcher for HTTP workers: the application that SGLang would serve."""
VARIABLES = (OFF, PROFILE_DIR, ACTIVE, HTTP_APPLICATION)
