"""Run every check and print what came out."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from tests.patch_checks import KEPT, REPAIRED


def main() -> None:
    """Print one JSON object; the tracebacks of what is not a plain "does not hold" go to standard error."""
    import sglang

    found: dict[str, str | None] = {"sglang": str(Path(sglang.__file__).parent)}
    for name, check in {**REPAIRED, **KEPT}.items():
        try:
            check()
            found[name] = None
        except AssertionError as error:
            found[name] = f"AssertionError: {error}"
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
