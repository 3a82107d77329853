"""The packed form of a draft's weights: a round trip preserves them, and damage is reported in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sglang_adaptive.cli import main
from sglang_adaptive.lab.models import smollm2
from sglang_adaptive.lab.models.folders import PACKED, WEIGHTS, ModelError, read_draft, widen
from train.smollm2.rounding import Rounded, write_packed

VOCABULARY = torch.tensor([0, 3, 4, 9])


def tensors() -> dict[str, torch.Tensor | Rounded]:
    generator = torch.Generator().manual_seed(3)
    levels = (6 * torch.randn(64, 48, generator=generator)).round().clamp(-127, 127).to(torch.int8)
    return {
        "fc.weight": Rounded(levels, torch.rand(48, generator=generator) + 0.1),
        "norm.weight": torch.randn(48, generator=generator).to(torch.bfloat16),
        "d2t": VOCABULARY - torch.arange(4),
        "t2d": torch.zeros(12, dtype=torch.bool).index_fill(0, VOCABULARY, True),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A packed draft with the config of one for SmolLM2."""
    write_packed(tmp_path / PACKED, tensors())
    (tmp_path / "config.json").write_text(json.dumps(smollm2.FITS), encoding="utf-8")
    return tmp_path


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    before, read = tensors(), read_draft(folder)
    assert read.keys() == before.keys()
    matrix = before.pop("fc.weight")
    assert isinstance(matrix, Rounded) and read["fc.weight"].dtype == torch.bfloat16
    assert torch.equal(read["fc.weight"], (matrix.levels.double() * matrix.step.double()).to(torch.bfloat16))
    for name, tensor in before.items():
        assert isinstance(tensor, torch.Tensor) and torch.equal(read[name], tensor), name


def test_a_widened_draft_reads_as_the_packed_one(folder: Path) -> None:
    (folder / "widened").mkdir()
    widen(folder, folder / "widened")
    assert {path.name for path in (folder / "widened").iterdir()} == {"config.json", WEIGHTS}
    packed, widened = read_draft(folder), read_draft(folder / "widened")
    assert packed.keys() == widened.keys() and all(torch.equal(packed[name], widened[name]) for name in packed)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-40], lambda whole: b"", lambda whole: b"\0" * len(whole)])
def test_a_damaged_draft_is_told_in_one_line(
    damage, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / PACKED).write_bytes(damage((folder / PACKED).read_bytes()))
    assert main(["models", "get", "smollm2", "--draft", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"{folder / PACKED}: cannot be read" in said and said.count("\n") == 1


def test_other_weights_than_the_measured_ones_are_not_taken_from_the_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(smollm2, "_IN_CHECKOUT", folder)
    with pytest.raises(ModelError, match="unexpected SHA-256 of the weights"):
        smollm2.get_draft()
    assert not (folder / "cache").exists()
    assert smollm2.get_draft(folder) == smollm2.draft_folder()  # same as an unpacked one
