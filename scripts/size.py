"""The size gate: prints how large the package is, and fails where a figure is above its kept value.

    python scripts/size.py [--write]

Kept values are in ``scripts/size.json``. ``--write`` lowers them to today's figures and raises none: to raise one, edit
the file, and name in the commit the measured figure that pays for it.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own package, installed or not

from scripts import of_source  # noqa: E402
from sglang_adaptive.sglang_plugin.env import VARIABLES  # noqa: E402
from sglang_adaptive.sglang_plugin.features import FEATURES  # noqa: E402
from sglang_adaptive.sglang_plugin.hooks import Process, hooks  # noqa: E402

KEPT = Path(__file__).with_suffix(".json")


def figures() -> dict[str, int]:
    """Return today's figures by name."""
    files = sorted((ROOT / "sglang_adaptive").rglob("*.py"))
    lab = [path for path in files if "lab" in path.relative_to(ROOT).parts]
    product = [path for path in files if path not in lab]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    keys = [rows for name, rows in of_source.configuration().items() if name != "features"]
    return {
        "product lines, without lab/": _lines(product),
        "product files, without lab/": len(product),
        "lab lines": _lines(lab),
        "tests lines": _lines((ROOT / "tests").rglob("*.py")),
        "lines of README and docs": _lines(pages),
        "hooked SGLang functions": len(hooks(*Process)),
        "environment variables": len(VARIABLES),
        "optional features": len(FEATURES),
        "configuration keys": sum(len(rows) - 2 for rows in keys),  # without each table's head
        "constants of the throughput policy": sum(
            constants(path.read_text()) for path in (ROOT / "sglang_adaptive/policy/throughput").glob("*.py")
        ),
    }


def constants(source: str) -> int:
    """Return how many tuned constants a module has.

    These are assignments of a number, or of a tuple of numbers, to an UPPER_CASE name of the module, alone or together
    with others, and defaults of dataclass fields that are numbers other than 0 or tuples of numbers. Values computed
    from other names do not count.
    """
    found = 0
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            defaults = [one.value for one in node.body if isinstance(one, ast.AnnAssign) and one.value is not None]
            found += sum(_is_number(value) and ast.unparse(value) not in ("0", "0.0") for value in defaults)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            found += sum(isinstance(to, ast.Name) and to.id.isupper() and _is_number(value) for to, value in pairs)
    return found


def compared(now: Mapping[str, int], kept: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each figure that is above its kept value."""
    for name, figure in now.items():
        if figure > kept.get(name, 0):
            yield (
                f"size: {name}: kept {kept.get(name, 0)}, now {figure}. Make it smaller, or raise it in "
                f"{KEPT.relative_to(ROOT)} and name in the commit the measured figure that pays for it"
            )


def main() -> int:
    """Print the figures; return 1 if one is above its kept value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="lower the kept values to today's figures")
    given = parser.parse_args()
    now, kept = figures(), json.loads(KEPT.read_text())
    for name, figure in now.items():
        print(f"{name:<36} {figure:>7,}  kept {kept.get(name, 0):>7,}")
    raised = list(compared(now, kept))
    lower = {name: figure for name, figure in now.items() if figure < kept.get(name, 0)}
    if given.write:
        KEPT.write_text(json.dumps({name: min(now[name], kept.get(name, now[name])) for name in now}, indent=1) + "\n")
    elif lower:
        print(f"size: below the kept value: {', '.join(lower)}. Keep that: python scripts/size.py --write")
    for line in raised:
        print(line, file=sys.stderr)
    return int(bool(raised))


def _is_number(value: ast.expr) -> bool:
    """Whether an expression consists of numbers only."""
    parts = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
    nodes = list(ast.walk(value))
    numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return (
        all(isinstance(node, parts) for node in nodes)
        and bool(numbers)
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers)
    )


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


if __name__ == "__main__":
    sys.exit(main())
