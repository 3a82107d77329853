"""The key ``"trace"``: whether the server writes down what it sees, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.config.schema import NumberKey
from sglang_adaptive.policy.errors import ConfigError, shown

TRACE = "trace"
FILE = "file"
FILE_EXPECTED = "a file's path"
MAX_MB = NumberKey("max_mb", False, 64.0, 0.1, 1e6, "disk space at most, in MB of 10**6 bytes, older rounds included")
OPTION_NAMES = (FILE, MAX_MB.name)
TRACE_EXPECTED = 'an object, as in {"file": "rounds.trace", "max_mb": 64}'


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where the server writes its rounds, and the disk space that they may take."""

    file: str
    max_mb: float = MAX_MB.default

    def as_dict(self) -> dict[str, Any]:
        """Return the object as ``parse_trace`` takes it."""
        return asdict(self)


def parse_trace(cfg: Mapping[str, Any], source: str) -> TraceOptions | None:
    """Check the key in the configuration *cfg*, read from *source*; None where it is left out.

    Raises:
        ConfigError: With one line that names file, key, value and what is accepted.
    """
    if TRACE not in cfg:
        return None
    options = cfg[TRACE]
    if not isinstance(options, dict):
        raise ConfigError(source, TRACE, f"got {shown(options)}", TRACE_EXPECTED)
    for name in options:
        if name not in OPTION_NAMES:
            raise ConfigError(source, f"{TRACE}.{name}", "unknown key", f"one of {', '.join(OPTION_NAMES)}")
    file = options.get(FILE)
    if not isinstance(file, str) or not file or "\0" in file:
        problem = f"got {shown(file)}" if FILE in options else "missing"
        raise ConfigError(source, f"{TRACE}.{FILE}", problem, FILE_EXPECTED)
    size = options.get(MAX_MB.name, MAX_MB.default)
    if not MAX_MB.accepts(size):
        raise ConfigError(source, f"{TRACE}.{MAX_MB.name}", f"got {shown(size)}", MAX_MB.expected)
    return TraceOptions(file, float(size))
