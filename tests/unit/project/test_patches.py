"""The patches for a source fork: each applies to the release it is for, and the patched SGLang is repaired."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from email import message_from_string
from importlib.metadata import version
from pathlib import Path

import pytest

from sglang_adaptive.serve_cpu import environment
from sglang_adaptive.sglang_plugin import bodies
from tests import checks
from tests.checks import Findings
from tests.repair_checks import PATCHED

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "patches" / version("sglang")
PATCHES = tuple(sorted(FOLDER.glob("*.patch")))
EVERY = tuple(sorted((ROOT / "patches").glob("*/*.patch")))
MARKER = "+++ b/python/"

needs_patches = pytest.mark.skipif(not PATCHES, reason="no patches for this release")


def copied(folder: Path) -> Path:
    """Copy the released version of every file that the patches change to *folder*; return *folder*."""
    lines = (line for patch in PATCHES for line in patch.read_text().splitlines())
    for name in {line.removeprefix(MARKER) for line in lines if line.startswith(MARKER)}:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(bodies.installed() / name, target)
    return folder


def apply(folder: Path, patches: Sequence[Path], *options: str) -> None:
    """Run ``git apply`` in *folder* as if outside any repository."""
    variables = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    command = ["git", "apply", "-p2", *options, *map(str, patches)]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_patches
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_each_patch_applies_alone(patch: Path, tmp_path: Path) -> None:
    apply(copied(tmp_path), [patch], "--check")


@needs_patches
@pytest.mark.parametrize("order", [1, -1], ids=["in sequence", "in reverse"])
def test_all_patches_apply_together(order: int, tmp_path: Path) -> None:
    tree = copied(tmp_path)
    for patch in PATCHES[::order]:
        apply(tree, [patch], "--whitespace=error")


@pytest.mark.parametrize("patch", EVERY, ids=lambda patch: patch.stem)
def test_each_patch_says_what_it_is_for(patch: Path) -> None:
    mail = message_from_string(patch.read_text())
    body, _, _ = str(mail.get_payload()).partition("\n---\n")
    assert str(mail["Subject"]).startswith("[PATCH] [Spec] ")
    assert "\nSeen " in body, "the header does not say how the defect was seen"
    assert max(map(len, body.splitlines())) <= 80
    assert f"`{patch.stem}`" in (ROOT / "patches" / "README.md").read_text()


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Return what the checks find in a patched tree: links to the installation, and copies of the patched files."""
    site = tmp_path_factory.mktemp("patched")
    subprocess.run(["cp", "-as", bodies.installed() / "sglang", site], check=True)
    apply(copied(site), PATCHES)
    variables = {**os.environ, **environment(), "TRITON_INTERPRET": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([str(site), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "tests.checks", *PATCHED]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Findings = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_patches
@pytest.mark.parametrize("check", [check for module in PATCHED for check in checks.named_in(module)])
def test_the_patched_sglang_is_repaired(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
