"""Reading a configuration file into one JSON object, with every failure told in one line."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from typing import Any

from sglang_adaptive.policy.errors import ConfigError, shown

MAX_BYTES = 1 << 20
_EXPECTED_FILE = "a readable JSON file"
_EXPECTED_OBJECT = 'a JSON object, as in {"1": {"candidate_steps": [1, 3, 7]}}'


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in *path*.

    NaN and Infinity come back as floats, so that the check of their key can name it.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8 or JSON, repeats a key, or holds no object.
    """
    file = os.fspath(path)
    text = _read_text(file)
    if not text.strip():
        raise ConfigError(file, None, "the file is empty", _EXPECTED_OBJECT)
    return parse_object(file, text)


def parse_object(source: str, text: str) -> dict[str, Any]:
    """Return the JSON object in *text*, which came from *source*; as ``read_object``.

    Raises:
        ConfigError: *text* is not JSON, repeats a key, or holds no object.
    """
    value = _parse(source, text)
    if not isinstance(value, dict):
        raise ConfigError(source, None, f"the top level is {shown(value)}", _EXPECTED_OBJECT)
    return value


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    """Return what changes when the file at *path* does: time, size and inode; None when it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_text(file: str) -> str:
    try:
        _require_regular(file, os.stat(file).st_mode)  # before it is opened: to open a device may do something
        # Not to wait for a writer, should the path have become a pipe meanwhile.
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
    # Every SGLang process reads the file again, so a pipe would be empty for all but the first.
    if not stat.S_ISREG(mode):
        what = "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
        raise ConfigError(file, None, what, _EXPECTED_FILE)


def _parse(file: str, text: str) -> Any:
    def object_from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated = next(name for name, count in counts.items() if count > 1)
            raise ConfigError(file, repeated, "the key is given more than once", "each key once")
        return members

    try:
        return json.loads(text, object_pairs_hook=object_from_pairs)
    except json.JSONDecodeError as error:
        problem = f"broken JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(file, None, problem, "JSON") from None
    except RecursionError:
        raise ConfigError(file, None, "the JSON is nested too deeply", _EXPECTED_OBJECT) from None
    except ConfigError:
        raise
    except ValueError:  # Python refuses to convert integers of thousands of digits
        raise ConfigError(file, None, "a number has too many digits", _EXPECTED_OBJECT) from None
