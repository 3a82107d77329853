"""``python -m tests.campaign``: run the stages in turn until the time is up, and report what was lost.

Exit codes: 0 no losses, 1 losses, 2 cannot start, 130 interrupted. Every finished unit is saved: ``--resume`` continues
after the last one, with the same seed.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from tests.campaign import gpu, report
from tests.campaign.record import Record
from tests.campaign.stages import STAGES, STEPPED, Site

MINUTES = 60.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=MINUTES, help=f"start no unit later (default: {MINUTES:.0f})")
    length.add_argument("--units", type=int, help="units per stage, without a time limit")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="run only this stage; repeatable")
    parser.add_argument("--folder", type=Path, default=Path("campaign"), help="state and report (default: campaign)")
    parser.add_argument("--resume", action="store_true", help="continue from the state in the folder")
    parser.add_argument("--gpu", action="store_true", help="use GPU servers, with graphs; skip the stepped scheduler")
    parser.add_argument("--short", action="store_true", help="run small units, for tests")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    gpu.used = options.gpu
    try:
        record = Record(options.folder / "units", options.seed, options.resume)
    except ValueError as error:
        print(f"python -m tests.campaign: {error}", file=sys.stderr)
        return 2
    site = Site(options.folder.resolve(), **({"each": 1, "sequences": 2, "short": True} if options.short else {}))
    told = shlex.join(["python", "-m", "tests.campaign", *(sys.argv[1:] if argv is None else argv)])
    code = 0
    try:
        _run(record, site, options, told)
    except KeyboardInterrupt:
        code = 130
    finally:
        site.close()
    found = report.make(record, told)
    path = report.write(found, options.folder)
    print(f"\n{len(record.units)} units, {found['lost']} lost: {path}")
    return code or int(found["lost"] > 0)


def _run(record: Record, site: Site, options: argparse.Namespace, told: str) -> None:
    names = options.stage or [name for name in STAGES if not (options.gpu and name == STEPPED)]
    begin, already = time.monotonic(), sum(unit.seconds for unit in record.units.values())
    whole = len(names) * options.units if options.units else options.minutes * 60
    with tqdm(total=round(whole), unit="unit" if options.units else "s", dynamic_ncols=True) as bar:
        while True:
            done = sum(record.done(name) for name in names)
            passed = done if options.units else already + time.monotonic() - begin
            bar.n = min(round(passed), bar.total)
            left = [name for name in names if not options.units or record.done(name) < options.units]
            if passed >= whole or not left:
                return
            name = min(left, key=lambda name: _spent(record, name) / STAGES[name][1])
            lost = sum(unit.lost.total() for unit in record.units.values())
            bar.set_description(f"{name}, unit {record.done(name)}, {lost} lost")
            record.run(name, lambda unit, act=STAGES[name][0]: act(unit, site))
            report.write(report.make(record, told), options.folder)  # so that a killed campaign has a report, too


def _spent(record: Record, stage: str) -> float:
    return sum(unit.seconds for unit in record.units.values() if unit.stage == stage)


if __name__ == "__main__":
    # A shell starts background jobs with SIGINT ignored; and SIGTERM must stop the servers, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    raise SystemExit(main())
