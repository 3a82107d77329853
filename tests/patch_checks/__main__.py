"""Run every check and print the results."""

from __future__ import annotations

import gc
import importlib
import json
from pathlib import Path

from sglang_adaptive.lab.cpu_engine import start
from tests import checks
from tests.patch_checks import KEPT, REPAIRED


def main() -> None:
    import sglang

    for name in start.MODULES:
        importlib.import_module(name)
    gc.freeze()  # the capturing checks would otherwise scan all of this, two seconds each time

    where = {"sglang": str(Path(sglang.__file__).parent)}
    print(json.dumps({**where, **checks.run({**REPAIRED, **KEPT})}))


if __name__ == "__main__":
    main()
