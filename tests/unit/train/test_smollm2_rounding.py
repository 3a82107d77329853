"""Rounding a draft: what error is left in the outputs, and what it would be without the inputs' second moment."""

from __future__ import annotations

import torch

from train.smollm2.rounding import LARGEST, rounded


def test_the_outputs_keep_the_wanted_precision_though_the_weights_do_not() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(24, 96, generator=generator).double()  # 96 inputs, most of them along 24 directions
    inputs = torch.randn(4000, 24, generator=generator).double() @ mixed
    inputs += 0.3 * torch.randn(4000, 96, generator=generator).double()
    matrix = torch.randn(80, 96, generator=generator).double()
    found = rounded(matrix, inputs.T @ inputs, noise=0.02)
    widened = found.widened().double()
    assert found.levels.dtype == torch.int8 and found.levels.abs().max() <= LARGEST
    outputs = inputs @ matrix.T
    error = (inputs @ widened.T - outputs).norm() / outputs.norm()
    assert 0.01 < error < 0.025
    # Each weight rounded to the same steps, and nothing made good:
    alone = (matrix / found.step).round() * found.step
    assert (inputs @ alone.T - outputs).norm() / outputs.norm() > 2 * error


def test_a_step_is_wide_enough_for_the_largest_number() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(500, 16, generator=generator).double()
    inputs[:, 5] *= 1e4
    matrix, inputs = torch.randn(8, 16, generator=generator).double(), inputs.double()
    found = rounded(matrix, inputs.T @ inputs, noise=0.001)
    own, largest = matrix[:, 5], matrix[:, 5].abs().max()
    assert (found.levels[:, 5] * found.step[5] - own).abs().max() < largest / LARGEST
