"""The patches for a source fork: they apply to the released sources and make the repairs that they claim."""

from __future__ import annotations

from email import message_from_string
from pathlib import Path

import pytest

from tests import checks
from tests.checks import Findings
from tests.patch_checks import KEPT, REPAIRED
from tests.patched_sglang import PATCHES, copy_touched, git_apply, package, patched_site
from tests.releases import since_the_newest

pytestmark = since_the_newest


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_each_patch_applies_alone(patch: Path, tmp_path: Path) -> None:
    checked = git_apply(copy_touched(tmp_path), [patch], "--check")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("order", [PATCHES, PATCHES[::-1]], ids=["in sequence", "in reverse"])
def test_all_patches_apply_together(order: tuple[Path, ...], tmp_path: Path) -> None:
    tree = copy_touched(tmp_path)
    for patch in order:
        applied = git_apply(tree, [patch], "--whitespace=error")
        assert applied.returncode == 0, applied.stderr


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_each_patch_says_what_it_is_for(patch: Path) -> None:
    mail = message_from_string(patch.read_text())
    body, _, _ = str(mail.get_payload()).partition("\n---\n")
    assert str(mail["Subject"]).startswith("[PATCH] [Spec] ")
    assert "\nSeen " in body, "the header does not say how the defect was seen"
    assert max(map(len, body.splitlines())) <= 80


def test_the_readme_names_every_patch() -> None:
    table = (PATCHES[0].parents[1] / "README.md").read_text()
    assert [patch.stem for patch in PATCHES if f"`{patch.stem}`" not in table] == []


INTERPRETED = {"TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Findings]:
    """Return the checks' findings for stock SGLang and for the patched copy; both run at once."""
    site = patched_site(tmp_path_factory.mktemp("patched"))
    running = checks.start("tests.patch_checks", site, **INTERPRETED)
    stock = checks.findings("tests.patch_checks.__main__", **INTERPRETED)
    found = {"stock": stock, "patched": checks.finish(running)}
    assert found["stock"]["sglang"] == str(package())
    assert found["patched"]["sglang"] == str(site / "sglang")
    return found


@pytest.mark.parametrize("name", REPAIRED)
def test_patched_sglang_is_repaired(name: str, findings: dict[str, Findings]) -> None:
    assert findings["patched"][name] is None, findings["patched"][name]


@pytest.mark.parametrize("name", REPAIRED)
def test_stock_sglang_needs_the_repair(name: str, findings: dict[str, Findings]) -> None:
    # Anything but a failed assertion means that the check does not fit this SGLang.
    assert (findings["stock"][name] or "").startswith("AssertionError"), findings["stock"][name]


@pytest.mark.parametrize("name", KEPT)
def test_patched_sglang_keeps_what_worked(name: str, findings: dict[str, Findings]) -> None:
    assert (findings["stock"][name], findings["patched"][name]) == (None, None)
