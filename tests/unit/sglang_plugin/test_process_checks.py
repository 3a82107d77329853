"""This package's replacements inside SGLang match SGLang's own code: the checks of tests/*_checks.py pass.

Each module runs in one process of the CPU engine; those with kernels run in Triton's interpreter.
"""

from __future__ import annotations

import functools

import pytest

from tests import checks
from tests.checks import Findings

PLAIN = ["worker", "reserve", "isolation", "attention_dp"]
INTERPRETED = [
    *("metadata", "greedy", "penalty", "graph_input", "tile", "device_plan", "layer", "decode_kernel"),
    *("chain_kernel", "lookup_kernel"),
]
MODULES: dict[str, dict[str, str]] = {f"{name}_checks": {} for name in PLAIN}
MODULES |= {f"{name}_checks": {"TRITON_INTERPRET": "1"} for name in INTERPRETED}
EVERY = [(module, check) for module in MODULES for check in checks.named_in(module)]


@functools.cache
def findings(module: str) -> Findings:
    found: Findings = checks.findings("tests.checks", module, **MODULES[module])
    return found


@pytest.mark.parametrize(("module", "check"), EVERY)
def test_it_holds(module: str, check: str) -> None:
    assert findings(module)[check] is None, findings(module)[check]
