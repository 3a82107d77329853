"""This package's replacements inside SGLang match SGLang's own code: the checks of tests/*_checks.py pass.

Each module runs in one process of the CPU engine; those with kernels run in Triton's interpreter.
"""

from __future__ import annotations

import functools

import pytest

from tests import checks
from tests.checks import Findings

INTERPRETED = {"TRITON_INTERPRET": "1"}
MODULES: dict[str, dict[str, str]] = {
    "worker_checks": {},
    "reserve_checks": {},
    "isolation_checks": {},
    "attention_dp_checks": {},
    "metadata_checks": INTERPRETED,
    "greedy_checks": INTERPRETED,
    "penalty_checks": INTERPRETED,
    "graph_input_checks": INTERPRETED,
    "tile_checks": INTERPRETED,
    "device_plan_checks": INTERPRETED,
    "layer_checks": INTERPRETED,
    "decode_kernel_checks": INTERPRETED,
    "chain_kernel_checks": INTERPRETED,
}
EVERY = [(module, check) for module in MODULES for check in checks.named_in(module)]


@functools.cache
def findings(module: str) -> Findings:
    found: Findings = checks.findings(f"tests.{module}", **MODULES[module])
    return found


@pytest.mark.parametrize(("module", "check"), EVERY)
def test_it_holds(module: str, check: str) -> None:
    assert findings(module)[check] is None, findings(module)[check]
