"""``TRITON_INTERPRET=1 python -m tests.repair_checks MODULE ...`` runs checks; "hooked" first installs the hooks.

It prints one JSON object: null for each check that passes, else the reason, and where SGLang is.
"""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module
from pathlib import Path

from sglang_adaptive.lab.cpu_engine import start
from tests import checks


def main(modules: list[str]) -> None:
    import sglang

    for name in start.MODULES:
        import_module(name)
    gc.freeze()  # the capturing checks would otherwise scan all of this, two seconds each time
    if modules[0] == "hooked":
        import_module("tests.repair_checks.hooked").install()
        del modules[0]
    found = {
        name: getattr(import_module(f"tests.repair_checks.{module}"), name)
        for module in modules
        for name in checks.named_in(f"repair_checks/{module}")
    }
    print(json.dumps({"sglang": str(Path(sglang.__file__).parent), **checks.run(found)}))


if __name__ == "__main__":
    main(sys.argv[1:])
