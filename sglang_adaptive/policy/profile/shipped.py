"""Finding the presets and cost profiles that come with the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def shipped_config(name: str) -> Path:
    """Return the path of *name* in ``configs/``, as in ``shipped_config("conservative.json")``.

    A wheel carries the folder inside the package; in a checkout it lies beside it.

    Raises:
        FileNotFoundError: Nothing of that name is shipped.
    """
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        path = folder / name
        if path.exists():
            return path
    raise FileNotFoundError(f"no {name!r} among the shipped configurations")
