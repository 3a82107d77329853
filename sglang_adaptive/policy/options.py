"""Options are annotated dataclass fields that hold the default, the kind and the meaning.

    sync_rounds: Annotated[int, integer("rounds between two syncs of measured times", 1, 100_000)] = 32

Everything else is derived from the field: the check of a file and its error lines, ``as_dict``, the tables of
docs/configuration.md, and the differences from the defaults that ``validate`` shows.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import count, takewhile
from typing import Any, ClassVar, Self, get_type_hints

from sglang_adaptive.policy.errors import ConfigError, shown

MAX_STEPS = 32
"""Most draft steps that a configuration may ask for."""
MAX_BATCH_SIZE = 1_000_000
"""Largest batch size of a slot or a profile."""


@dataclass(frozen=True, slots=True)
class Option:
    """What an option means and accepts; the functions below create it."""

    meaning: str
    expected: str
    """The accepted values, in words."""
    accepts: Callable[[Any], bool]
    read: Callable[[Any, str, str], Any] = lambda value, place, source: value
    """Converts an accepted value, of the key *place* in *source*, to the field's value; may raise ConfigError."""
    default: str | None = None
    """The default in words, if the value alone is unclear."""
    at_start: bool = False
    """Whether it is read only at server start."""

    def check(self, value: Any, place: str, source: str) -> Any:
        """Return the field's value; raises a one-line ConfigError if *value* is not accepted."""
        if not self.accepts(value):
            raise ConfigError(source, place, f"got {shown(value)}", self.expected)
        return self.read(value, place, source)


def number(meaning: str, low: float, high: float, above: bool = False) -> Option:
    """Return an option for a number from *low*, or *above* it, to *high*; NaN and infinity are rejected."""
    reach = f"above {low:g} up to" if above else f"from {low:g} to"

    def accepts(value: Any) -> bool:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        return real and (low < value <= high if above else low <= value <= high)

    return Option(meaning, f"a number {reach} {high:.15g}", accepts)


def integer(meaning: str, low: int, high: int) -> Option:
    return Option(meaning, f"an integer from {low} to {high}", lambda value: is_integer(value, low, high))


def flag(meaning: str, default: str | None = None) -> Option:
    return Option(meaning, "true or false", lambda value: isinstance(value, bool), default=default)


def automatic(meaning: str) -> Option:
    return Option(meaning, '"auto", true or false', lambda value: value == "auto" or isinstance(value, bool))


def pathname(meaning: str, expected: str, default: str | None = None) -> Option:
    """Return an option for a path; one that begins with ``~`` must name a user's folder."""

    def accepts(value: Any) -> bool:
        if not isinstance(value, str) or not value or "\0" in value:
            return False
        return not value.startswith("~") or os.path.expanduser(value) != value

    return Option(meaning, expected, accepts, default=default)


def word(meaning: str, *words: str) -> Option:
    return Option(meaning, " or ".join(f'"{one}"' for one in words), lambda value: value in words)


def depths(meaning: str) -> Option:
    """Return an option for a list of steps; the field has them ascending, without repeats."""

    def read(value: Any, place: str, source: str) -> tuple[int, ...]:
        one = integer(meaning, 0, MAX_STEPS)
        return tuple(sorted({one.check(steps, f"{place}[{at}]", source) for at, steps in enumerate(value)}))

    expected = f"a non-empty list of integers from 0 to {MAX_STEPS}, as in [1, 3, 7]"
    return Option(meaning, expected, lambda value: isinstance(value, list) and bool(value), read)


def nested(cls: type, meaning: str, expected: str) -> Option:
    """Return an option for an object whose keys are the options of *cls*; by default there is none."""

    def read(value: Any, place: str, source: str) -> Any:
        return cls(**checked(cls, value, f"{place}.", source))

    return Option(meaning, expected, lambda value: isinstance(value, dict), read, "none")


def at_start(option: Option) -> Option:
    """Return *option* as one that is read only at server start."""
    return replace(option, meaning=f"{option.meaning}; read only at server start", at_start=True)


def is_integer(value: Any, low: float, high: float) -> bool:
    """Whether *value* is an integer from *low* to *high*; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@cache  # resolving type hints is slow; to mypy ``x.__class__`` is hashable, and ``type(x)`` of Any is not
def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by name, in field order; other fields are left out."""
    hints = get_type_hints(cls, include_extras=True)
    marked = [(field.name, getattr(hints[field.name], "__metadata__", ())) for field in fields(cls)]
    return {name: extra for name, extras in marked for extra in extras if isinstance(extra, Option)}


def checked(cls: type, given: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    """Return the values in *given* for the options of *cls*; raises ConfigError, with *prefix* before the key."""
    known = options_of(cls)
    for name in given:
        if name not in known:
            raise unknown_key(source, f"{prefix}{name}", name, tuple(known), "one of")
    found = {name: known[name].check(value, f"{prefix}{name}", source) for name, value in given.items()}
    for field in fields(cls):
        if field.name in known and field.name not in found and field.default is MISSING:
            raise ConfigError(source, f"{prefix}{field.name}", "missing", known[field.name].expected)
    return found


def unknown_key(source: str, place: str, name: str, known: Sequence[str], intro: str) -> ConfigError:
    """Return the error for the unknown key *name* at *place*; it suggests a similar *known* key, if any."""
    return ConfigError(source, place, "unknown key", f"{intro} {', '.join(known)}{nearest(name, known)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint with the member of *known* that *name* resembles, or an empty string."""
    close = difflib.get_close_matches(name[:64].lower(), known, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""


def as_dict(options: Any) -> dict[str, Any]:
    """Return *options* as a configuration object with all defaults; options that are None are left out."""
    return {name: value for name, value in _values(options).items() if value is not None}


def changed(options: Any, prefix: str) -> list[dict[str, Any]]:
    """Return the options that differ from their defaults: key, value, default and meaning, as JSON builtins."""
    values, defaults = _values(options), _defaults(type(options))
    return [
        {"key": f"{prefix}{name}", "value": values[name], "default": defaults[name], "meaning": option.meaning}
        for name, option in options_of(options.__class__).items()
        if name in defaults and values[name] != defaults[name]
    ]


def reference(cls: type) -> list[tuple[str, str, str, str]]:
    """Return name, default, accepted values and meaning of each option of *cls*, in words."""
    shown_defaults = {name: json.dumps(value) for name, value in _defaults(cls).items()}
    shown_defaults |= {name: f"{value:g}" for name, value in _defaults(cls).items() if isinstance(value, float)}
    return [
        (name, option.default or shown_defaults.get(name, "required"), option.expected, option.meaning)
        for name, option in options_of(cls).items()
    ]


def _values(options: Any) -> dict[str, Any]:
    return {name: _builtin(getattr(options, name)) for name in options_of(options.__class__)}


def _defaults(cls: type) -> dict[str, Any]:
    known = options_of(cls)
    return {f.name: _builtin(f.default) for f in fields(cls) if f.name in known and f.default is not MISSING}


def _builtin(value: Any) -> Any:
    return as_dict(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value


class PolicyOptions:
    """A policy's checked options: a frozen dataclass, read from the object under the policy's name.

    A policy with keys elsewhere overrides the methods, as ``ema`` does.
    """

    policy: ClassVar[str]
    """The policy's name; ``register`` sets it."""
    summary: ClassVar[str] = ""
    """What the policy does, in one or two sentences that ``validate`` prints after its name."""
    profile_dir: str | None = None
    """Folder of cost profiles; None for the user's cache."""
    lookup: bool | str = False
    """Whether rounds may look drafts up in each request's own text; "auto" for where they can."""
    lookup_memory_mb: int = 0
    """Device memory for finished texts that are searched as well, in MB."""
    lookup_texts: str | None = None
    """File of texts that are always searched, see ``config.texts_in``."""
    lookup_kinds: ClassVar[Any] = {}
    """Batch sizes of these rounds by number of drafts, which is no depth, ascending."""
    candidate_steps: tuple[int, ...]
    """Every depth that the policy may choose, ascending."""

    @classmethod
    def listed_keys(cls) -> tuple[str, ...]:
        """Return this policy's top-level keys, as an error lists them."""
        return (cls.policy,)

    @classmethod
    def owns(cls, key: str, source: str) -> bool:
        """Whether *key* belongs to this policy, which may own more keys than it lists.

        Raises ConfigError for a key that belongs to no policy but was probably meant for this one.
        """
        return key in cls.listed_keys()

    @classmethod
    def beside(cls, key: str, chosen: str, source: str) -> ConfigError:
        """Return the error for *key*, one of this policy's, in a file for the policy *chosen*."""
        return ConfigError(source, key, f'not an option of the policy "{chosen}"', "no options of another policy")

    @classmethod
    def read(cls, cfg: Mapping[str, Any], source: str) -> Self:
        """Return the options in the configuration *cfg*; raises ConfigError."""
        options = cfg.get(cls.policy, {})
        if not isinstance(options, dict):
            raise ConfigError(source, cls.policy, f"got {shown(options)}", "an object of options")
        found = cls(**checked(cls, options, f"{cls.policy}.", source))
        found.require_consistent(source)
        return found

    def require_consistent(self, source: str) -> None:
        """Raise ConfigError, as ``read`` does, for options that do not fit together."""

    def as_dict(self) -> dict[str, Any]:
        """Return the policy's part of an equivalent configuration, with all defaults."""
        return {self.policy: as_dict(self)}

    def up_to(self, most: int) -> Self:
        """Return the options without lookups and without depths above *most*; only *most* if no depth is left."""
        fewer: Any = {"candidate_steps": depths_up_to(most, self.candidate_steps)}
        return replace(self, **fewer, **({"lookup": False} if self.lookup else {}))  # type: ignore[type-var]

    def of_block(self, most: int) -> Self:
        """Return the options for drafts in blocks of *most*, without depths above it.

        The default depths become *most* and those of blocks of 1, 2, 4, 8, ... tokens, including the last known token.
        So a configuration without depths uses the launch's whole block.
        """
        fewer, default = self.up_to(most), type(self).__dataclass_fields__.get("candidate_steps")  # type: ignore[attr-defined]
        if default is None or self.candidate_steps != default.default:
            return fewer
        narrower = takewhile(lambda steps: steps < most, (2**power - 1 for power in count()))
        return replace(fewer, candidate_steps=(*narrower, most))  # type: ignore[type-var]

    def depths_by_batch(self) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
        """Yield each list of depths: its key, the list, its smallest batch size, and the first one past its range."""
        yield f"{self.policy}.candidate_steps", self.candidate_steps, 0, math.inf
        for drafts, sizes in self.lookup_kinds.items() if self.lookup is True else ():
            yield f"{self.policy}.lookup", (drafts,), sizes.start, sizes.stop

    def facts(self) -> dict[str, Any]:
        """Return what ``validate`` shows, as JSON builtins; "changed" is as ``changed`` returns it."""
        return {"options": _values(self), "changed": changed(self, f"{self.policy}.")}


def depths_up_to(most: int, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return *steps* without those above *most*; only *most* if none is left."""
    return tuple(depth for depth in steps if depth <= most) or (most,)
