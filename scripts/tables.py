"""Writes the dashboard and the generated parts of the docs.

A generated part is between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    python scripts/tables.py [--check] [PAGE ...]

``--check`` only reports whether they are current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks and tests are not part of the package

from scripts import dashboard, launch_lines, of_results, of_source  # noqa: E402

Parts = Mapping[str, Iterable[str]]
PAGES: dict[str, Callable[[], Parts]] = {
    "README.md": lambda: {"real": of_results.first_figure()},
    "docs/block-drafters.md": of_results.block_drafters,
    "docs/cli.md": of_source.commands,
    "docs/compatibility.md": lambda: {
        "gpu-tests": of_results.gpu_tests(), "campaign": of_results.campaign(),
        "architectures": of_results.architectures(), "setups": of_source.setups(),
    },
    "docs/configuration.md": of_source.configuration,
    "docs/hooks.md": of_source.hooks,
    "docs/monitoring.md": of_source.metrics,
    "docs/launch-lines.md": launch_lines.tables,
    "docs/measurements.md": of_results.measurements,
    "docs/performance.md": of_results.performance,
}  # fmt: skip


class MarkerError(ValueError):
    """A page lacks a marker, or has it twice."""


DASHBOARD = "monitoring/grafana-dashboard.json"


def current(name: str) -> str:
    """Return the expected content of the file *name*. Raises MarkerError, with the file."""
    if name == DASHBOARD:
        return dashboard.text()
    try:
        return filled((ROOT / name).read_text(), PAGES[name]())
    except MarkerError as error:
        raise MarkerError(f"{name}: {error}") from None


def filled(page: str, parts: Parts) -> str:
    """Return *page* with the lines of each name replaced. Raises MarkerError if a name is not marked exactly once."""
    for name, lines in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        for marker in (begin, end):
            if (times := page.count(marker)) != 1:
                raise MarkerError(f"has {times} lines {marker.strip()}; expected one")
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = "".join([before, begin, *(f"{line}\n" for line in lines), end, after])
    return page


def main() -> int:
    """Write the files, or with ``--check`` name the outdated ones and return 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("pages", nargs="*", metavar="PAGE", choices=[*PAGES, DASHBOARD, []], help="default: all")
    given = parser.parse_args()
    stale = []
    for name in given.pages or [*PAGES, DASHBOARD]:
        try:
            text = current(name)
        except MarkerError as error:
            sys.exit(f"tables: {error}")
        if (ROOT / name).read_text() != text:
            stale.append(name)
            if not given.check:
                (ROOT / name).write_text(text)
    if given.check and stale:
        print(f"not current: {', '.join(stale)}; run make tables", file=sys.stderr)
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
