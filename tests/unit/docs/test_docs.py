"""The documentation shows what the package does, and every page is in the site."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from scripts import ledger, tables
from sglang_adaptive import __version__
from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import bodies
from sglang_adaptive.sglang_plugin.admin.handlers import CONFIG_KEY
from tests.messages import GAP
from tests.releases import IS_OLDER

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [*tables.PAGES, tables.DASHBOARD])
def test_generated_files_are_current(name: str) -> None:
    assert tables.current(name) == (ROOT / name).read_text(), "run make tables"


def test_what_is_old_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    current = (ROOT / "README.md").read_text()
    page.write_text(current.replace("| batch 1 |", "| batch 0 |"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    for arguments, code in (["--check"], 1), ([], 0), (["--check"], 0):
        monkeypatch.setattr(sys, "argv", ["tables.py", *arguments, "README.md"])
        assert tables.main() == code
    assert page.read_text() == current
    assert "not current: README.md" in capsys.readouterr().err
    page.write_text(current.replace("<!-- real: end -->", ""))
    with pytest.raises(SystemExit, match=r"^tables: README\.md: has 0 lines <!-- real: end -->; expected one$"):
        tables.main()


@pytest.mark.parametrize(
    "config", [{"8": {"candidate_steps": [1, True]}}, {"1": {"candidate_steps": [1]}, "up_histeresis": 0}]
)
def test_the_shown_refusals_are_real(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(config, "my.json")
    # The page omits the list of keys.
    line = re.sub(r"(?<=one of ).*(?= \(did you mean)", "...", str(caught.value))
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert f"\n{line}\n" in page
    asked = check_config({"1": {"candidate_steps": [1, 5]}}, CONFIG_KEY)
    with pytest.raises(ConfigError) as caught:
        asked.require_built(CapturedSteps(dict.fromkeys((0, 1, 3, 7))))
    assert f"\n{caught.value}\n" in page


def test_every_preset_and_profile_is_described() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.json")}
    assert not [path for path in shipped if f"](../{path})" not in page]


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert cited["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


SECTION = re.search(
    "## Log: adaptive speculation is off\n(.*?)\n## ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.S
)
assert SECTION
OFF = " ".join(SECTION[1].split())
"""The page's text on servers that do not adapt."""


def test_reasons_of_sglang() -> None:
    file = bodies.installed() / "sglang" / "srt" / "speculative" / "adaptive_spec_params.py"
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    asked = next(function for function in functions if function.name == "adaptive_unsupported_reason")
    returned = [node.value for node in ast.walk(asked) if isinstance(node, ast.Return)]
    reasons = [text(value) for value in returned if value is not None and text(value)]
    assert len(reasons) == (6 if IS_OLDER else 7)
    assert not [reason for reason in reasons if f"`{reason}`" not in OFF]


def text(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else GAP for part in value.values]
        return re.sub(r"\s+", " ", "".join(parts))
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


RESULTS = ROOT / "benchmarks" / "results"
PERFORMANCE = " ".join((ROOT / "docs" / "performance.md").read_text().split())


def test_results_are_listed() -> None:
    listed = (RESULTS / "h200" / "README.md").read_text()
    kept = [path.name for path in (RESULTS / "h200").iterdir() if path.name != "README.md"]
    assert [name for name in kept if f"`{name}" not in listed] == []


def test_costs() -> None:
    overhead = json.loads((RESULTS / "policy" / "overhead.json").read_text())
    policies = overhead["policies"]
    ours, theirs, sync = policies["throughput"], policies["SGLang EMA"], policies["throughput hand-over"]
    assert f"median {ours['median_us']:.1f} us, p99 {ours['p99_us']:.0f} us" in PERFORMANCE
    assert f"(SGLang's EMA: {theirs['median_us']:.1f} us, {theirs['p99_us']:.1f} us)" in PERFORMANCE
    assert f"median {sync['median_us']:.0f} us, p99 {sync['p99_us']:.0f} us" in PERFORMANCE
    assert f"200,000 rounds | {overhead['bytes_by_rounds']['200000'] / 1000:.0f} kB |" in PERFORMANCE
    look = re.search(r"open page \| ([\d.]+ to [\d.]+ ms) of", PERFORMANCE)
    assert look and look[1] in (RESULTS / "page" / "README.md").read_text()


def test_the_readme_leads_to_every_page_in_one_step() -> None:
    linked = links(ROOT / "README.md")
    pages = {*(ROOT / "docs").glob("*.md"), *(ROOT / "patches").glob("*.md"), *(ROOT / "train").rglob("*.md")}
    assert not (pages | {ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"}) - linked


def test_the_benchmarks_page_leads_to_every_page_of_results() -> None:
    page = ROOT / "benchmarks" / "README.md"
    assert not {*page.parent.rglob("*.md")} - links(page) - {page}


def links(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text())}


@pytest.mark.skipif(not find_spec("sphinx"), reason="the extra `docs` is not installed: the site is not built")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", str(tmp_path / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, "--conf-dir", "docs", ".", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "README.html").read_text()
    assert "How it works" in page and 'href="docs/troubleshooting.html"' in page
    assert "README.html" in (tmp_path / "site" / "index.html").read_text()
    outside = re.findall(r"<(?:link|script|img)[^>]+(?:href|src)=\"(https?:[^\"]+)", page)
    assert not outside, "the site has to be readable without a network"


FILE = "[measured](benchmarks/results/a.json)"
COMMIT = {"provenance": {"commit": "b40ae7a1"}}


def test_the_readme() -> None:
    assert not list(ledger.without_a_file((ledger.ROOT / "README.md").read_text()))


@pytest.mark.parametrize(
    ("text", "content", "wrong"),
    [
        ("1.9 times the tokens/s", COMMIT, "links no file"),
        (f"It is 6 to 11 times as fast.\n\n{FILE}", COMMIT, "links no file"),
        ("Up to 5% slower", COMMIT, "links no file"),
        ("| batch 1 |\n|---|\n| 1.03 |", COMMIT, "links no file"),
        (f"a decision of 23 us, {FILE}", {"provenance": {"commit": None}}, "has no commit"),
        (f"a decision of 23 us, {FILE}", COMMIT, None),
        (f"<!-- t: begin -->\n| 1.03 |\n\n{FILE}\n<!-- t: end -->", COMMIT, None),
        ("SGLang 0.5.22, Python 3.11 to 3.13, Llama-3.1-8B, 4.5 GB\n\n```bash\n5 ms\n```", COMMIT, None),
    ],
)
def test_a_figure_without_a_commit_is_named(
    text: str, content: object, wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "a.json").write_text(json.dumps(content))
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    found = list(ledger.without_a_file(text))
    assert [wrong in line for line in found] == [True] if wrong else not found


def test_every_file_of_the_ledger_has_a_line() -> None:
    lines = {line.split()[0]: line for line in ledger.entries()}
    for path in ledger.files_of("README.md"):
        commit = ledger.commit_of(json.loads(path.read_text()))
        line = lines[path.relative_to(ledger.RESULTS).as_posix()]
        assert commit and commit[:8] in line and "README.md" in line
