"""SmolLM2's EAGLE-3 draft: a checkout holds it, the wheel does not, and any other one may be given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sglang_adaptive.models.errors import ModelError
from sglang_adaptive.models.folders import make_whole
from sglang_adaptive.models.hashes import sha256_of_file
from sglang_adaptive.models.smollm2 import target_folder

SHA256 = "39f92e1be55d2e9d27097ffdbe2877792b299104df235b4098f0d12c7f8bca52"
"""Of model.safetensors of the draft that the figures of train/smollm2/README.md belong to."""

FILES = ("config.json", "model.safetensors")
FITS = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 576, "vocab_size": 49152}
"""What the config of a draft for this target says."""

_IN_CHECKOUT = Path(__file__).parents[2] / "train" / "smollm2" / "draft3"


def draft_folder() -> Path:
    """Return where the draft is, or would be."""
    return target_folder().with_name("draft3")


def get_draft(given: Path | None = None) -> Path | None:
    """Return the folder of the draft in the cache, copied there unless it is there; *given* replaces it.

    None when there is none: not in the cache, not given, and this package does not run from a checkout.
    Raises ModelError for a draft of another target, and when the disk cannot take it.
    """
    folder = draft_folder()
    if given is None and folder.is_dir():
        return folder
    source = given or _IN_CHECKOUT
    if given is None and not source.is_dir():
        return None
    check_fits(source)
    if given is None and sha256_of_file(source / "model.safetensors") != SHA256:
        raise ModelError(f"{source}/model.safetensors: its SHA-256 is not the expected one; check it out again")
    megabytes = sum((source / name).stat().st_size for name in FILES) / 1e6 + 1
    make_whole(folder, lambda partial: _copy(source, partial), megabytes)
    return folder


def is_measured_one(folder: Path) -> bool:
    """Return whether *folder* holds the draft whose accept lengths are published."""
    return sha256_of_file(folder / "model.safetensors") == SHA256


def check_fits(folder: Path) -> None:
    """Raise ModelError unless *folder* looks like an EAGLE-3 draft for SmolLM2-135M."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder}: {missing[0]} is missing; expected a folder with {' and '.join(FILES)}")
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        wrong = [key for key, value in FITS.items() if config.get(key) != value]
    except (ValueError, AttributeError):
        raise ModelError(f"{folder}/config.json: is not a JSON object") from None
    if wrong:
        got = json.dumps(config.get(wrong[0]))
        raise ModelError(f"{folder}/config.json: {wrong[0]}: got {got}; expected {json.dumps(FITS[wrong[0]])}")


def _copy(source: Path, folder: Path) -> None:
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
