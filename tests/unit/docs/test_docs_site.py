"""The documentation as a site: every page is in its navigation, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INDEX = ROOT / "docs" / "index.md"


def test_every_page_is_in_the_index() -> None:
    linked = {(INDEX.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+\.md)\)", INDEX.read_text())}
    pages = {*(ROOT / "docs").glob("*.md"), *(ROOT / name / "README.md" for name in ("patches", "train"))}
    pages |= {*(ROOT / "benchmarks").rglob("*.md"), ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "README.md"}
    missing = {page.relative_to(ROOT).as_posix() for page in pages - linked - {INDEX}}
    assert not missing


@pytest.mark.skipif(not find_spec("sphinx"), reason="the extra `docs` is not installed: the site is not built")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", str(tmp_path / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", "docs", ".", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "index.html").read_text()
    assert "Contribute" in page and 'href="troubleshooting.html"' in page
    assert "docs/index.html" in (tmp_path / "site" / "index.html").read_text()
    outside = re.findall(r"<(?:link|script|img)[^>]+(?:href|src)=\"(https?:[^\"]+)", page)
    assert not outside, "the site has to be readable without a network"
