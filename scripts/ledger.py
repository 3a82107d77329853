"""The ledger: the result files behind the figures of README.md and the docs, each with the commit that ran.

    python scripts/ledger.py [--check]

Prints each file with its commit, the number of later commits that changed the measured code, and the pages that use it.
Fails if a paragraph or table of README.md has a figure, and links no file in benchmarks/results/ that has a commit.
``--check`` prints only that.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own package, installed or not

from scripts import of_results, tables  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
MEASURED = ("sglang_adaptive", ":!sglang_adaptive/lab")
"""The code that the results measure, as git names it."""

FIGURE = re.compile(r"\d%|\d (?:times|us|ms|s|seconds|minutes|tokens/s)\b|(?<![\w.-])\d+\.\d+(?![.\d]| [GM]B)")
"""A share, a ratio, a time or a rate; not a version, nor the size of a download."""

VERSIONS = re.compile(r"(?:Python|SGLang) \d[\d.]*(?: to \d[\d.]*)?")
LINKED = re.compile(r"\]\((benchmarks/results/[^)#]+\.json)\)")
GENERATED = re.compile(r"<!-- (\S+): begin -->.*?<!-- \1: end -->", re.S)
NAMED = re.compile(r"[\w./-]+\.json\b")


def commit_of(content: Any) -> str | None:
    """Return the commit of a result's content, None if it has none."""
    if not isinstance(content, dict):
        return None
    found = content.get("commit") or content.get("git_commit")
    return found or next((one for value in content.values() if (one := commit_of(value))), None)


def without_a_file(page: str) -> Iterator[str]:
    """Yield what is wrong with each paragraph and table of README.md that has a figure but no file with a commit."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    whole = GENERATED.sub(lambda part: part[0].replace("\n\n", "\n"), prose)
    for block in whole.split("\n\n"):
        figure = FIGURE.search(VERSIONS.sub("", block))
        if figure is None:
            continue
        where = f'README.md: "{" ".join(block[max(0, figure.start() - 40) : figure.end() + 20].split())}"'
        files = LINKED.findall(block)
        if not files:
            yield f"{where} links no file in benchmarks/results/ that it comes from"
        for file in files:
            if commit_of(json.loads((ROOT / file).read_text())) is None:
                yield f"{where} comes from {file}, which has no commit"


def files_of(page: str) -> set[Path]:
    """Return the result files that a page names, or that its tables are generated from."""
    of_results.READ.clear()
    text = tables.current(page) if page in tables.PAGES else (ROOT / page).read_text()
    presets = {path.name for path in (ROOT / "configs").rglob("*.json")}
    found = set(of_results.READ)
    for name in {name.rpartition("benchmarks/results/")[2] for name in NAMED.findall(text)} - presets:
        found |= {RESULTS / name} if "/" in name else set(RESULTS.rglob(name))
    return {path for path in found if path.is_file()}


@cache
def changes_since(commit: str) -> str:
    """Return how many later commits changed the measured code, or why that is unknown."""
    span = f"{commit.removesuffix('-dirty')}..HEAD"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-list", "--count", span, "--", *MEASURED], capture_output=True, text=True
    )
    return done.stdout.strip() or "not in this history"


def entries() -> Iterator[str]:
    """Yield a line for each file."""
    pages = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    used: dict[Path, list[str]] = {}
    for page in pages:
        for path in files_of(page):
            used.setdefault(path, []).append(page)
    yield f"{'file in benchmarks/results/':<51} {'commit':<9} {'changes since':>13}  used by"
    for path, by in sorted(used.items()):
        commit = commit_of(json.loads(path.read_text()))
        short = "none" if commit is None else commit[:8] + "*" * commit.endswith("-dirty")
        since = "" if commit is None else changes_since(commit)
        yield f"{path.relative_to(RESULTS).as_posix():<51} {short:<9} {since:>13}  {', '.join(by)}"
    yield "* with changes that were not committed"


def main() -> int:
    """Print the ledger; return 1 if a figure of README.md has no file with a commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only look for figures of README.md without a file")
    given = parser.parse_args()
    if not given.check:
        print("\n".join(entries()))
    wrong = list(without_a_file((ROOT / "README.md").read_text()))
    for line in wrong:
        print(f"ledger: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
