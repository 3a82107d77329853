"""Compare results: every contender in every case of a workload, as a share of the case's best static depth.

    python -m benchmarks.compare A.json [B.json ...] [--workload cells]
    python -m benchmarks.compare A.json --over static-3 throughput-before-3

Reads files of benchmarks.policies and of races of benchmarks.served. ``--over`` prints the first contender's rate over
the second's in each turn of a race, and the median.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

from benchmarks import policies, served
from benchmarks.harness.results import BadResult, command_parser, read
from benchmarks.harness.turns import mean_rates

Case = tuple[tuple[str, Any], ...]
Rates = dict[str, dict[Case, float]]
"""Tokens/s by contender and case."""


def main(argv: Sequence[str]) -> int:
    """Print the tables; 2 if a file is not a result."""
    parser = command_parser("compare", __doc__)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--workload", help="show only this workload")
    parser.add_argument("--over", nargs=2, metavar=("NAME", "OTHER"), help="one contender over another, turn by turn")
    given = parser.parse_args(argv)
    try:
        print("\n".join(by_turn(given.results, *given.over)) if given.over else table(given.results, given.workload))
    except BadResult as problem:
        print(f"benchmarks.compare: error: {problem}", file=sys.stderr)
        return 2
    return 0


def rows(path: Path) -> list[dict[str, Any]]:
    """Return a file's rows: workload, contender, case, tokens_per_second. Raises BadResult, naming file and key."""
    content = read(path)
    if content.get("schema") == served.SCHEMA and "batches" in content:
        head = {"workload": content["phase"]}
        return [
            {**head, "contender": name, "case": {"batch_size": int(size)}, "tokens_per_second": rate}
            for size, turns in content["batches"].items()
            for name, rate in mean_rates(turns).items()
        ]  # fmt: skip
    if content.get("schema") != policies.SCHEMA:
        raise BadResult(f"{path}: schema: got {content.get('schema')!r}; expected {policies.SCHEMA}")
    found = content.get("rows")
    if not isinstance(found, list):
        raise BadResult(f"{path}: rows: got {found!r}; expected list")
    for index, row in enumerate(found):
        for key, kind in (("workload", str), ("contender", str), ("case", dict), ("tokens_per_second", float)):
            value = row.get(key) if isinstance(row, dict) else None
            if not isinstance(value, (int, float) if kind is float else kind):
                raise BadResult(f"{path}: rows[{index}].{key}: got {value!r}; expected {kind.__name__}")
    return found


def by_turn(paths: Sequence[Path], name: str, other: str) -> Iterator[str]:
    """Yield a line for each batch size: the median of *name*'s rate over *other*'s, and each turn's."""
    for path in paths:
        for size, turns in read(path).get("batches", {}).items():
            passes = [turn["passes"] for turn in turns if {name, other} <= set(turn["passes"])]
            ratios = [one[name]["rate"] / one[other]["rate"] for one in passes]
            told = f"{median(ratios):.3f} of {' '.join(f'{ratio:.3f}' for ratio in ratios)}" if ratios else "no turn"
            yield f"{path.stem}, batch {size}, {name} over {other}: {told}"


def rates(named_rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Rates:
    """Return tokens/s by contender and case, averaged over rows with the same ones.

    A row whose p is None holds for every p of its batch size.
    """
    every = list(named_rows)
    known = list(dict.fromkeys(case_of(row) for _, row in every))
    found: dict[str, dict[Case, list[float]]] = {}
    for name, row in every:
        for case in _cases(case_of(row), known):
            found.setdefault(name, {}).setdefault(case, []).append(row["tokens_per_second"])
    return {name: {case: fmean(each) for case, each in cases.items()} for name, cases in found.items()}


def case_of(row: Mapping[str, Any]) -> Case:
    """Return a hashable key of a row's case."""
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in row["case"].items())


def is_static(name: str) -> bool:
    """Return whether a contender runs one depth, with or without drafts."""
    return name.startswith("static-")


def best_static(found: Rates) -> dict[Case, float]:
    """Return each case's best static depth in tokens/s."""
    best: dict[Case, float] = {}
    for cases in (cases for name, cases in found.items() if is_static(name)):
        for case, rate in cases.items():
            best[case] = max(rate, best.get(case, 0.0))
    return best


def shares(of: Mapping[Case, float], reference: Mapping[Case, float]) -> list[float]:
    """Return rate over reference for every case that both have."""
    return [of[case] / reference[case] for case in of if case in reference]


def table(paths: Sequence[Path], workload: str | None = None) -> str:
    """Return a table for each workload in *paths*. Raises BadResult for an unusable file."""
    read_rows = [(_label(path, paths), row) for path in paths for row in rows(path)]
    wanted = [name for name in dict.fromkeys(row["workload"] for _, row in read_rows) if workload in (None, name)]
    if not wanted:
        return "no rows" + (f" of {workload}" if workload else "")
    told = sorted({str(content.get("acceptance") or content.get("what")) for content in map(read, paths)})
    tables = ("\n".join(_workload(name, [one for one in read_rows if one[1]["workload"] == name])) for name in wanted)
    return "\n\n".join([*tables, *told])


def _cases(case: Case, known: Sequence[Case]) -> list[Case]:
    plain = dict(case)
    if "p" not in plain or plain["p"] is not None:
        return [case]
    same = [one for one in known if {**dict(one), "p": None} == plain and dict(one)["p"] is not None]
    return same or [case]


def _workload(workload: str, named_rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    found = rates(_distinct(named_rows))
    first = next(iter(found))
    reference, what = best_static(found), "the case's best static depth"
    if not reference:
        reference, what = found[first], first
    wide = max(12, *(len(name) + 2 for name in found))
    yield f"{workload}: tokens/s as a share of {what}"
    yield f"{'':<34}{'tokens/s':>10}" + "".join(f"{name:>{wide}}" for name in found)
    for case in dict.fromkeys(case for one in found.values() for case in one):
        base = reference.get(case)
        cells = (f"{found[name][case] / base:.3f}" if base and case in found[name] else "-" for name in found)
        yield f"{_words(case):<34.34}{base or 0:>10.0f}" + "".join(f"{cell:>{wide}}" for cell in cells)
    drafted = {case: rate for case, rate in reference.items() if dict(case).get("p") != 0}  # at p 0 no draft can pay
    sums = [shares(of, drafted) for of in found.values()]
    mean = f"geometric mean{' of p > 0' if len(drafted) < len(reference) else ''}"
    for title, figure in ((mean, geometric_mean), ("worst", min)):
        yield f"{title:<44}" + "".join(f"{f'{figure(one):.3f}' if one else '-':>{wide}}" for one in sums)


def _distinct(named_rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return contender and row; contenders in several files carry the file's name."""
    owners: dict[str, set[str]] = {}
    for label, row in named_rows:
        owners.setdefault(row["contender"], set()).add(label)
    return [
        (f"{row['contender']} {label}" if len(owners[row["contender"]]) > 1 else row["contender"], row)
        for label, row in named_rows
    ]


def _label(path: Path, paths: Sequence[Path]) -> str:
    """Return the file's name, with its folder if another file has the same name."""
    alike = sum(path.name == other.name for other in paths) > 1
    return f"{path.parent.name}/{path.stem}" if alike else path.stem


def _words(case: Case) -> str:
    short = {"batch_size": "batch", "requests_per_second": "req/s", "phase_seconds": "s"}
    told = ((short.get(key, key), value) for key, value in case if key not in ("decay", "capacity_of", "phases"))
    return ", ".join(f"{key} {_value(value)}" for key, value in told)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
