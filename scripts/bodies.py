"""Records a hash of each hooked SGLang function for every supported release: ``make bodies``.

Each release is unpacked into its own folder, without its dependencies; nothing in it is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang_adaptive.sglang_plugin import bodies, hooks
from sglang_adaptive.sglang_plugin.contract import RELEASES


def main() -> None:
    """Write `bodies.RECORD`."""
    targets = sorted(hooks.targets())
    found = {release: _of(release, targets) for release in RELEASES}
    record = {t: {release: of[t] for release, of in found.items() if t in of} for t in targets}
    lines = ",\n".join(f"{json.dumps(target)}: {json.dumps(hashes)}" for target, hashes in record.items())
    bodies.RECORD.write_text(f"{{\n{lines}\n}}\n")


def _of(release: str, targets: Sequence[str]) -> dict[str, str]:
    """Return the hashes in one release."""
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--target", folder, f"sglang=={release}"], check=True)
        return bodies.hashes(targets, Path(folder))


if __name__ == "__main__":
    main()
