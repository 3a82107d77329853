"""SmolLM2's EAGLE-3 draft: a checkout holds it, the wheel does not, and any other one may be given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.models.errors import ModelError
from sglang_adaptive.lab.models.folders import make_whole
from sglang_adaptive.lab.models.hashes import sha256_of_weights
from sglang_adaptive.lab.models.packed import PACKED, WEIGHTS, read_draft, widen
from sglang_adaptive.lab.models.smollm2 import target_folder

WEIGHTS_SHA256 = "5b3aac3b6b96a18f0fa3c19db2da344b3db7597056ca80047b5a1c9c70df3529"
"""Of the weights that the checkout's draft is widened to, in float32, as `sha256_of_weights` computes it."""

MEGABYTES = 31
"""Disk that the draft takes: 14.8M bfloat16 values, and the tokens that it proposes."""

FITS = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 576, "vocab_size": 49152}
"""What the config of a draft for this target says."""

_IN_CHECKOUT = Path(__file__).parents[3] / "train" / "smollm2" / "draft3"


def draft_folder() -> Path:
    """Return where the draft is, or would be."""
    return target_folder().with_name("draft3-widened")


def get_draft(given: Path | None = None) -> Path | None:
    """Return the folder of the draft in the cache, widened into it unless it is there; *given* replaces it.

    None when there is none: not in the cache, not given, and this package does not run from a checkout.
    Raises ModelError for a draft of another target or a damaged one, and when the disk cannot take it.
    """
    folder = draft_folder()
    if given is None and folder.is_dir():
        return folder
    source = given or _IN_CHECKOUT
    if given is None and not source.is_dir():
        return None
    check_fits(source)
    if given is None and not is_measured_one(source):
        raise ModelError(f"{source}: the SHA-256 of its weights is not the expected one; check it out again")
    make_whole(folder, lambda partial: widen(source, partial), MEGABYTES)
    return folder


def is_measured_one(folder: Path) -> bool:
    """Return whether *folder* holds the draft whose accept lengths are published, packed or widened."""
    weights = read_draft(folder)
    values = {name: (one.float() if one.is_floating_point() else one).numpy() for name, one in weights.items()}
    return sha256_of_weights(values) == WEIGHTS_SHA256


def check_fits(folder: Path) -> None:
    """Raise ModelError unless *folder* looks like an EAGLE-3 draft for SmolLM2-135M."""
    for files in (("config.json",), (WEIGHTS, PACKED)):
        if not any((folder / name).is_file() for name in files):
            raise ModelError(
                f"{folder}: {files[0]} is missing; expected a folder with config.json, and {WEIGHTS} or {PACKED}"
            )
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        wrong = [key for key, value in FITS.items() if config.get(key) != value]
    except (ValueError, AttributeError):
        raise ModelError(f"{folder}/config.json: is not a JSON object") from None
    if wrong:
        got = json.dumps(config.get(wrong[0]))
        raise ModelError(f"{folder}/config.json: {wrong[0]}: got {got}; expected {json.dumps(FITS[wrong[0]])}")
