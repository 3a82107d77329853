"""The configuration: its file, its keys, what it requires of a running server, and how two of them differ."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from sglang_adaptive.policy import options as opt
from sglang_adaptive.policy.base import DEFAULT_POLICY, POLICIES, AdaptivePolicy
from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.options import PolicyOptions, at_start, flag, integer, nested, number, pathname
from sglang_adaptive.policy.profile import CostProfile, shipped_config

BUILT_IN = "built-in default"
"""Source of a configuration without a file."""
MAX_BYTES = 1 << 20
MOST_SHOWN = 8
"""Differences between two configurations that a log line lists."""
_EXPECTED_FILE = "a readable JSON file"
_EXPECTED_OBJECT = 'a JSON object, as in {"1": {"candidate_steps": [1, 3, 7]}}'
_ABSENT = object()
Stamp = tuple[int, int, int]
"""See `file_stamp`."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where the server writes its rounds, and how much disk space they may use."""

    file: Annotated[
        str, pathname("file for the rounds; older ones are in a file with `.1` appended to its name", "a file's path")
    ]
    max_mb: Annotated[float, number("maximum disk space in MB of 10**6 bytes, including older rounds", 0.1, 1e6)] = 64.0


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Which finished requests the server decodes again at zero steps, and when."""

    share: Annotated[float, number("share of finished greedy requests to decode again", 0.0, 1.0, above=True)]
    when: Annotated[str, opt.word("when to decode them again: while the server has no other request", "idle")] = "idle"


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """A configuration with every value checked: the policy's options and the server's."""

    policy: str
    options: PolicyOptions
    source: str
    """The file, or another origin, as named in errors."""
    watch: Annotated[bool, flag("reload the file whenever it changes")] = False
    warm_up: Annotated[
        bool | None,
        at_start(flag("run every depth at several batch sizes before the server is ready", "true; false on a CPU")),
    ] = None
    prune_graphs: Annotated[
        bool, at_start(flag("capture a depth's CUDA graphs only for the batch sizes where it can be chosen"))
    ] = True
    exact: Annotated[bool, at_start(flag("sample each token as a server without speculation does"))] = True
    zero_step_extend_every: Annotated[
        int, integer("zero-step rounds between two runs of the draft", 1, opt.MAX_STEPS + 1)
    ] = 8
    trace: Annotated[
        TraceOptions | None,
        nested(
            TraceOptions,
            "write the rounds that the server runs to a file",
            'an object, as in {"file": "rounds.trace", "max_mb": 64}',
        ),
    ] = None
    audit: Annotated[
        AuditOptions | None,
        nested(
            AuditOptions,
            "decode some finished greedy requests again at zero steps, and compare the tokens",
            'an object, as in {"share": 0.001, "when": "idle"}',
        ),
    ] = None

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that the policy may choose, ascending."""
        return list(self.options.candidate_steps)

    @property
    def launch_steps(self) -> int:
        """The initial depth if the launch line names none; SGLang chooses it the same way."""
        return self.candidate_steps[len(self.candidate_steps) // 2]

    @property
    def drafts(self) -> list[int]:
        """Draft counts of all rounds: the depths and the lookup drafts."""
        return [*self.candidate_steps, *self.options.lookup_kinds]

    def build_policy(
        self, initial_steps: int, profile: Callable[[], CostProfile | None] = lambda: None
    ) -> AdaptivePolicy:
        """Return the policy of this configuration; its attribute ``config`` is for /server_info.

        *profile* loads this server's saved round times, or None without any; all ranks load together.
        """
        policy: Any = POLICIES[self.policy].policy
        made = policy(initial_steps, self.options, *((profile(),) if policy.keeps_profile else ()))
        made.config = self
        return made  # type: ignore[no-any-return]

    def after_start(self, given: Collection[str], running: Mapping[str, Any]) -> AdaptiveConfig:
        """Return this configuration for a server that runs *running*, as ``as_dict`` returns it; {} if unknown.

        The keys that are read only at server start keep their values. Raises ConfigError if one of them is among the
        *given* keys with another value.
        """
        if not running:
            return self
        marked = (name for name, option in opt.options_of(AdaptiveConfig).items() if option.at_start)
        kept: dict[str, Any] = {name: running.get(name) for name in marked}
        for name, value in kept.items():
            if name in given and (asked := getattr(self, name)) != value:
                runs = "no such key" if value is None else shown(value)
                raise ConfigError(self.source, name, f"got {shown(asked)}", f"{runs}: it is read only at server start")
        return replace(self, **kept)

    def require_built(self, built: CapturedSteps, running: Mapping[str, Any] | None = None) -> None:
        """Raise ConfigError if this needs something that was not *built*, unless *running* asks for it as well.

        *running* is the configuration in force, as ``as_dict`` returns it: a server that cannot look drafts up starts
        without, whatever its configuration says, and that configuration must pass again with another option changed.

        A depth without graphs would run, only slowly. Start-up gives graphs to every depth that may run at a batch
        size, and a later configuration must meet the same rule. A policy that keeps to depths with graphs
        (``keeps_to_graphs``) needs graphs for one of its depths at each size; any other policy needs them for all.
        """
        keeps_to_graphs = POLICIES[self.policy].policy.keeps_to_graphs
        asked_before = (running or {}).get(self.policy, {}).get("lookup") is True
        for place, steps, low, high in self.options.depths_by_batch():
            looks_up = steps[0] in self.options.lookup_kinds
            if looks_up and built.graph_sizes and not any(low <= size < high for size in built.graph_sizes):
                continue  # its rounds would have no graphs
            if looks_up and not built.lookups:
                if asked_before:
                    continue
                expected = 'false or "auto"'
                raise ConfigError(self.source, place, "asks for rounds that the server started without", expected)
            missing = [depth for depth in steps if depth not in built.graphs or (depth in built.lookups) != looks_up]
            if missing:
                problem = f"needs {_listed(missing)}, which was not built when the server started"
                raise ConfigError(self.source, place, problem, f"depths among {_listed(built.graphs)}")
            for size in built.graph_sizes:
                lacking = set(steps) - built.at(size) if low <= size < high else set()
                if lacking and (not keeps_to_graphs or lacking == set(steps)):
                    problem = f"needs {_listed(lacking)}, which has no CUDA graphs at batch size {size}"
                    raise ConfigError(self.source, place, problem, f"depths among {_listed(built.at(size))} there")

    def as_dict(self) -> dict[str, Any]:
        """Return an equivalent configuration object, with all defaults."""
        return {"policy": self.policy, **opt.as_dict(self), **self.options.as_dict()}


def load_config(name: str | os.PathLike[str] | None = None) -> AdaptiveConfig:
    """Read and check the configuration *name*, as in `locate`; without a name, return the default policy's defaults.

    Raises ConfigError.
    """
    if name is None:
        return check_config({}, BUILT_IN)
    path = locate(name)
    return check_config(read_object(path), path)


def check_config(cfg: Mapping[str, Any], source: str) -> AdaptiveConfig:
    """Check the JSON object *cfg*, read from *source*, and return it frozen; raises ConfigError."""
    server = opt.options_of(AdaptiveConfig)
    known = {name: registered.options for name, registered in POLICIES.items()}
    owners: dict[str, str | None] = {}
    for key in cfg:
        owners[key] = next((name for name, its in known.items() if its.owns(key, source)), None)
        if owners[key] is None and key != "policy" and key not in server:
            raise opt.unknown_key(source, key, key, top_level_keys(), "a batch size as digits or one of")
    policy = _policy(cfg, owners, source)
    for key, owner in owners.items():
        if owner not in (None, policy):
            raise known[owner].beside(key, policy, source)
    given = {key: value for key, value in cfg.items() if key in server}
    found = AdaptiveConfig(
        policy, source=source, **opt.checked(AdaptiveConfig, given, "", source), options=known[policy].read(cfg, source)
    )
    if found.audit is not None and 0 not in found.candidate_steps:
        problem = f"the depths are {_listed(found.candidate_steps)}"
        raise ConfigError(source, "audit", problem, "0 among the depths, at which requests are decoded again")
    return found


def top_level_keys() -> tuple[str, ...]:
    """Return the top-level keys that a file may have, except slots."""
    keys = (key for registered in POLICIES.values() for key in registered.options.listed_keys())
    return ("policy", *opt.options_of(AdaptiveConfig), *keys)


def _policy(cfg: Mapping[str, Any], owners: Mapping[str, str | None], source: str) -> str:
    """Return the named policy, or else one that a key belongs to, or else the default."""
    if "policy" not in cfg:
        meant = set(owners.values())
        return next((name for name in POLICIES if name in meant), DEFAULT_POLICY)
    name = cfg["policy"]
    if not isinstance(name, str) or name not in POLICIES:
        known = " or ".join(f'"{policy}"' for policy in POLICIES)
        hint = opt.nearest(name, tuple(POLICIES)) if isinstance(name, str) else ""
        raise ConfigError(source, "policy", f"got {shown(name)}", f"the policy {known}{hint}")
    return name


# -- the file --------------------------------------------------------------------------------------------------------


def presets() -> dict[str, Path]:
    """Return the files of the shipped configurations by name, as in ``presets()["throughput"]``, ascending."""
    return dict(sorted((path.stem, path) for path in shipped_config(".").glob("*.json")))


def locate(name: str | os.PathLike[str]) -> str:
    """Return the path of the configuration *name*: a file, or else the preset with this name.

    Raises ConfigError, with the presets, if there is neither.
    """
    given = os.fspath(name)
    if os.path.isfile(given):
        return given
    shipped = presets()
    if given in shipped:
        return str(shipped[given])
    try:
        os.lstat(given)
    except FileNotFoundError as error:
        like = opt.nearest(os.path.basename(given).removesuffix(".json"), tuple(shipped))
        expected = f"{_EXPECTED_FILE}, or one of the presets {', '.join(shipped)}{like}"
        raise ConfigError(given, None, f"cannot be read: {error.strerror}", expected) from None
    except (OSError, ValueError):
        pass  # whoever reads it says why
    return given


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in *path*.

    NaN and Infinity are returned as floats, so that the check can name their key. Raises ConfigError if the file cannot
    be read, is not UTF-8 or JSON, repeats a key, or holds no object.
    """
    file = os.fspath(path)
    text = _read_text(file)
    if not text.strip():
        raise ConfigError(file, None, "the file is empty", _EXPECTED_OBJECT)
    return parse_object(file, text)


def parse_object(source: str, text: str) -> dict[str, Any]:
    """Return the JSON object in *text* from *source*, as ``read_object`` does."""

    def object_from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated = next(name for name, count in counts.items() if count > 1)
            raise ConfigError(source, repeated, "the key is given more than once", "each key once")
        return members

    try:
        value = json.loads(text, object_pairs_hook=object_from_pairs)
    except json.JSONDecodeError as error:
        problem = f"broken JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(source, None, problem, "JSON") from None
    except RecursionError:
        raise ConfigError(source, None, "the JSON is nested too deeply", _EXPECTED_OBJECT) from None
    except ConfigError:
        raise
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise ConfigError(source, None, "a number has too many digits", _EXPECTED_OBJECT) from None
    if not isinstance(value, dict):
        raise ConfigError(source, None, f"the top level is {shown(value)}", _EXPECTED_OBJECT)
    return value


def file_stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Return the time, size and inode of the file at *path*, to detect changes; None if there is no file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_text(file: str) -> str:
    try:
        _require_regular(file, os.stat(file).st_mode)  # before opening, because opening a device may have effects
        # Do not wait for a writer if the path has become a pipe meanwhile.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            _require_regular(file, os.fstat(stream.fileno()).st_mode)
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(file, None, f"cannot be read: {error.strerror}", _EXPECTED_FILE) from None
    except ConfigError:
        raise
    except ValueError as error:  # a path with a null character
        raise ConfigError(file, None, f"cannot be read: {error}", _EXPECTED_FILE) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(file, None, f"is larger than {MAX_BYTES} bytes", _EXPECTED_OBJECT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8"
        raise ConfigError(file, None, problem, "JSON text encoded as UTF-8") from None


def _require_regular(file: str, mode: int) -> None:
    # A pipe would be empty when a running server reads it again.
    if not stat.S_ISREG(mode):
        what = "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
        raise ConfigError(file, None, what, _EXPECTED_FILE)


def texts_in(path: str) -> list[str | list[int]]:
    """Return the texts of a file, one a line: a JSON string, or a JSON list of token ids. Raises ConfigError."""
    expected, found = "a JSON string or list of token ids a line", list[str | list[int]]()
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(path, None, str(error), f"a file with {expected}") from None
    for at, line in enumerate(lines, 1):
        try:
            text = json.loads(line)
        except ValueError:
            text = None
        tokens = isinstance(text, list) and all(type(token) is int and token >= 0 for token in text)
        if not (text and (tokens or isinstance(text, str))):
            raise ConfigError(path, f"line {at}", f"got {shown(line)}", expected)
        found.append(text)
    return found


def require_texts(options: PolicyOptions, *, as_text: bool = True) -> None:
    """Raise ConfigError unless the texts of ``lookup_texts`` take at most half of the memory.

    Without *as_text* they must be tokens.
    """
    path, megabytes = options.lookup_texts, options.lookup_memory_mb
    if not (options.lookup and path):
        return
    texts, most = texts_in(path), megabytes << 17  # half of the tokens, which are 4 bytes each
    if not as_text and any(isinstance(text, str) for text in texts):
        raise ConfigError(path, None, "has text", "lists of token ids beside --skip-tokenizer-init")
    size = len(texts) + sum(len(text.encode()) if isinstance(text, str) else len(text) for text in texts)
    if size > most:
        expected = f"{most:,} at most with a lookup_memory_mb of {megabytes}"
        raise ConfigError(path, None, f"has {size:,} bytes of text or tokens", expected)


def describe_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return "key: old -> new" for every key that differs, as in ``8.ema_alpha: 0.2 -> 0.3``; one line.

    Both come from ``AdaptiveConfig.as_dict``, so an explicit default makes no difference.
    """
    found = [f"{key}: {old} -> {new}" for key, old, new in _differences(before, after, "")]
    if not found:
        return "nothing differs"
    more = len(found) - MOST_SHOWN
    return ", ".join(found[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    for key in (*before, *(key for key in after if key not in before)):
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old is _ABSENT or new is _ABSENT or old != new:
            yield f"{prefix}{key}", *("none" if value is _ABSENT else shown(value) for value in (old, new))


def _listed(steps: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
