"""Run every check and print what came out."""

from __future__ import annotations

import json
from pathlib import Path

from tests import checks
from tests.patch_checks import KEPT, REPAIRED


def main() -> None:
    """Print one JSON object."""
    import sglang

    where = {"sglang": str(Path(sglang.__file__).parent)}
    print(json.dumps({**where, **checks.run({**REPAIRED, **KEPT})}))


if __name__ == "__main__":
    main()
