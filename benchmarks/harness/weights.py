"""SGLang plugin of the benchmarks: dummy weights with which every layer matters and drafts are sometimes right.

SGLang's dummy weights lie within 1e-3, so attention and states change no token, and reading a wrong key would go
unnoticed. Here normalized layers keep the size of the hidden states, weights depend only on the parameter's name and
shape, and a few rows of the output layer are larger than the others. The next token is then one of ``FREQUENT`` tokens
and depends on the whole text, and a random draft is right about once in that many.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import internals, plugin

SWITCH = "BENCHMARK_ARCHITECTURES"
"""Environment variable: "1" makes the plugin act."""

MAMBA2 = "BENCHMARK_ARCHITECTURES_MAMBA2"
"""Environment variable: "uncured" leaves out this package's repair of Mamba2's verify."""

FREQUENT = 4
"""Token ids below this get the large rows of the output layer."""

RARE = 0.1
"""Size of the other rows."""

EMBEDDING = 0.5
"""Standard deviation of an embedding; what a layer adds has about that of its normalized input, 1."""


def environment(plugin_folder: Path) -> dict[str, str]:
    """Return the variables of a server with this plugin; writes the plugin's metadata into *plugin_folder*."""
    return {SWITCH: "1", **plugin.environment(plugin_folder, "benchmark_architectures", __name__)}


def register() -> None:
    """Entry point: replace the dummy weights, and undo the repair of Mamba2 if requested."""
    if os.environ.get(SWITCH) != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.initialize_dummy_weights", initialise, HookType.REPLACE)
    if os.environ.get(MAMBA2) == "uncured":
        internals.without_mamba2_repair()


def initialise(model: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces SGLang's initialize_dummy_weights: fill every floating-point parameter of *model* by its name."""
    import torch

    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            if torch.is_floating_point(parameter):
                _fill(name, parameter, torch)


def _fill(name: str, parameter: Any, torch: Any) -> None:
    size = spread(name, tuple(parameter.shape))
    if isinstance(size, Constant):
        parameter.fill_(size.value)
        return
    generator = torch.Generator(device=parameter.device)
    generator.manual_seed(seed(name))
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
    drawn.uniform_(size.low, size.high, generator=generator)
    if name.endswith("lm_head.weight") or name.endswith("embed_tokens.weight"):
        drawn[FREQUENT:] *= RARE if "lm_head" in name else 1.0
    parameter.copy_(drawn.to(parameter.dtype))


@dataclass(frozen=True)
class Constant:
    """A parameter with one value."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """A parameter drawn between two bounds."""

    low: float
    high: float

    @classmethod
    def of(cls, deviation: float) -> Uniform:
        """Return the distribution around zero with this standard deviation."""
        return cls(-deviation * 3**0.5, deviation * 3**0.5)


ENDINGS: Mapping[str, Constant | Uniform] = {
    "A_log": Uniform(-3.0, 0.0),  # states decay within 2 to 30 tokens
    ".A": Uniform(-1.0, -0.05),  # of Mamba2, as SGLang keeps it: minus its exponential
    "dt_bias": Uniform(-1.0, 1.0),
    ".D": Constant(1.0),
    "sinks": Uniform(-1.0, 1.0),
    "e_score_correction_bias": Uniform(-0.05, 0.05),
    "layer_scalar": Constant(1.0),
    "_scale": Constant(1.0),
    ".bias": Uniform(-0.02, 0.02),
    "_bias": Uniform(-0.02, 0.02),
}


def spread(name: str, shape: tuple[int, ...]) -> Constant | Uniform:
    """Return how the parameter *name* of *shape* is drawn; sums run over the last axis."""
    for ending, size in ENDINGS.items():
        if name.endswith(ending):
            return size
    if len(shape) < 2 or "norm" in name.rsplit(".", 2)[-2]:
        return Constant(1.0)
    if "embed" in name:
        return Uniform.of(EMBEDDING)
    inputs = shape[-1]
    return Uniform.of(inputs**-0.5)


def seed(name: str) -> int:
    """Return a seed that is the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
