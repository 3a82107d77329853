"""The options under ``"throughput"``: few, checked, and with defaults that need no tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.config.schema import CANDIDATE_STEPS, CANDIDATE_STEPS_EXPECTED, MAX_STEPS, NumberKey, Switch
from sglang_adaptive.policy.errors import ConfigError, shown

DEFAULT_LADDER = (0, 1, 2, 3, 5, 7)

NUMBER_KEYS: tuple[NumberKey, ...] = (
    NumberKey("margin", False, 0.01, 0.0, 1.0, "gain in tokens/s that another depth must promise before a switch"),
    NumberKey("memory_rounds", True, 3840, 8, 100_000, "rounds after which what drafts brought counts 1/e"),
    NumberKey("shrinkage", False, 12.0, 0.0, 10_000.0, "trials by which a position is drawn to the one before it"),
    NumberKey("change_threshold", False, 10.0, 1.0, 1e6, "accepted for older files, without effect"),
    NumberKey("probe_budget", False, 0.005, 0.0, 0.2, "largest share of time that probes may lose; 0 is no probes"),
    NumberKey("sync_rounds", True, 32, 1, 100_000, "rounds between two hand-overs of measured times"),
)
"""The numeric options; ``margin`` 0.01 is 1%."""

VERIFY_BUDGET = Switch(
    "verify_budget", "false", "verify only the drafts of a batch that are likely right, where that pays; needs fa3"
)
_BY_NAME = {key.name: key for key in NUMBER_KEYS}
PROFILE_DIR = "profile_dir"
PROFILE_DIR_EXPECTED = "a folder's path"
OPTION_NAMES = (CANDIDATE_STEPS, *_BY_NAME, VERIFY_BUDGET.name, PROFILE_DIR)


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """Checked options of the throughput policy."""

    candidate_steps: tuple[int, ...] = DEFAULT_LADDER
    """Depths that may run, ascending."""
    margin: float = 0.01
    memory_rounds: int = 3840
    shrinkage: float = 12.0
    change_threshold: float = 10.0
    probe_budget: float = 0.005
    sync_rounds: int = 32
    verify_budget: bool = False
    """Whether rounds may verify fewer drafts than they make."""
    profile_dir: str | None = None
    """Where cost profiles are kept; None for the user's cache."""

    def as_dict(self) -> dict[str, Any]:
        """Return the options as ``parse_options`` takes them, every default spelt out."""
        options = {**asdict(self), CANDIDATE_STEPS: list(self.candidate_steps)}
        if self.profile_dir is None:
            del options[PROFILE_DIR]
        return options


def parse_options(options: Mapping[str, Any], source: str) -> ThroughputOptions:
    """Check the options given under ``"throughput"`` in *source*; those left out keep their defaults.

    Raises:
        ConfigError: With one line that names file, key, value and what is accepted.
    """
    for name in options:
        if name not in OPTION_NAMES:
            expected = f"one of {', '.join(OPTION_NAMES)}"
            raise ConfigError(source, f"throughput.{name}", "unknown option", expected)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == CANDIDATE_STEPS:
            found[name] = _ladder(value, source)
        elif name == PROFILE_DIR:
            if not isinstance(value, str) or not value or "\0" in value:
                raise ConfigError(source, f"throughput.{name}", f"got {shown(value)}", PROFILE_DIR_EXPECTED)
            found[name] = value
        elif name == VERIFY_BUDGET.name:
            if not isinstance(value, bool):
                raise ConfigError(source, f"throughput.{name}", f"got {shown(value)}", VERIFY_BUDGET.expected)
            found[name] = value
        elif not _BY_NAME[name].accepts(value):
            expected = _BY_NAME[name].expected
            raise ConfigError(source, f"throughput.{name}", f"got {shown(value)}", expected)
        else:
            found[name] = value
    parsed = ThroughputOptions(**found)
    if parsed.probe_budget == 0 and 0 in parsed.candidate_steps:
        # Not every setup hears the draft at zero steps; where none is heard, nothing but a probe ever ends them.
        raise ConfigError(
            source,
            "throughput.probe_budget",
            f"got {shown(found['probe_budget'])}",
            f"above 0, or throughput.{CANDIDATE_STEPS} without 0: only a probe leads out of zero steps",
        )
    return parsed


def _ladder(value: Any, source: str) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(isinstance(s, int) and not isinstance(s, bool) for s in value)
    if not whole or not value or not all(0 <= steps <= MAX_STEPS for steps in value):
        where = f"throughput.{CANDIDATE_STEPS}"
        raise ConfigError(source, where, f"got {shown(value)}", CANDIDATE_STEPS_EXPECTED)
    if max(value) == 0:
        where = f"throughput.{CANDIDATE_STEPS}"
        raise ConfigError(source, where, f"got {shown(value)}", "at least one depth above 0 to choose")
    return tuple(sorted(set(value)))
