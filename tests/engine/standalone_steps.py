"""The scripts of zero steps with a draft that is a model of its own; run as a process, prints what came of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.stepping import TIERS, Stepper
from tests.engine.zero_step_scripts import pair
from train import cut

LAYERS = 2
"""Of the target's eight: keys and values of the second follow from what the first attended to."""
SCRIPTS = ("resume after 9", "resume after 40", "come and go", "second turn", "leave early", "retract")


class Wide(Stepper):
    """With a state of 32 draft tokens, so that 32 rounds may be pending."""

    CONFIG: Mapping[str, Any] = {"1": {"candidate_steps": [*TIERS, 31]}}


def compare(lab: Stepper) -> list[dict[str, Any]]:
    """Run SCRIPTS with an extend in every round and with held rows, and once with rows never extended."""
    pairs = [pair(lab, name, every=8) for name in SCRIPTS]
    pairs.append(pair(lab, "come and go", every=3, overlap=False))
    deferred = lab.deferred
    with mock.patch.object(deferred, "_run", lambda *_, **__: deferred._pending.settle() or deferred._held.clear()):
        pairs.append(pair(lab, "resume after 9", every=8, fault="never extended"))
    return pairs


def main() -> None:
    folder = Path(sys.argv[1])
    draft = cut.write(folder / "draft", LAYERS, Path(models.target_path()))
    lab = Wide(folder, "STANDALONE", str(draft))
    print(json.dumps(compare(lab)))


if __name__ == "__main__":
    main()
