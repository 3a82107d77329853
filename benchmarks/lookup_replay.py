"""Simulate drafts looked up in recorded texts, on every shipped cost profile. See benchmarks/README.md.

    python -m benchmarks.lookup_replay [--texts F]... [--rounds N] [--seeds N] [--json F]
    python -m benchmarks.lookup_replay --host-paced MS --tracking-ms MS ...

Compares the policy with lookups to the best single depth and to the policy without lookups. The acceptance of lookups
is exact, because it is read from the text. EAGLE-3's acceptance is recorded at every position. Round times are from the
profiles. Times of rounds with lookups are from the cost model, which matches one H100 within 2%
(``lookups/edits-llama8b.json``). A cell is the mean over the seeds, which set the order of the requests; single runs,
each about ten seconds of serving, differ by 1%.

With ``--host-paced`` every round takes the same time, whatever it drafts and verifies, as with a model that is small
for its host.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import ints
from sglang_adaptive.lab.simulate.contenders import LOOKUPS
from sglang_adaptive.lab.simulate.cost import RoundCost, SimulationError
from sglang_adaptive.lab.simulate.real.cell import Cell
from sglang_adaptive.lab.simulate.real.suite import DEFAULT_ROUNDS, Setting, load_costs, pick, play
from sglang_adaptive.lab.simulate.real.texts import Texts, load_texts
from sglang_adaptive.policy.throughput.lookups import KINDS, TRACKING_SECONDS

TRACES = Path(__file__).parent / "traces"
TEXTS = [TRACES / name for name in ("smollm2-greedy.npz", "tiny.npz", "edits_set/smollm2-edits.npz")]
"""The recordings with lookups."""
BATCHES = (1, 4, 8, 16, 32)
DEPTHS = (0, 1, 2, 3, 5, 7)
MIXED = {"smollm2-greedy, repetitions cut", "smollm2-edits"}
"""Recordings that are also played together."""
POLICY = "throughput"
REPLAYED = "recorded, position by position; round times are cost profiles'"
Plays = tuple[Cell, ...]
"""A cell, by seed."""
COLUMNS = ["texts", "scene", "batch", "profile", "best depth", POLICY, LOOKUPS]


def main(argv: Sequence[str]) -> int:
    """Play every cell and print one row per text and batch size; 2 on bad input."""
    given = parser().parse_args(argv)
    try:
        texts = load_texts([str(file) for file in given.texts or TEXTS])
        if texts.keys() >= MIXED:
            texts["a quarter edits"] = mixed(*map(texts.__getitem__, sorted(MIXED, reverse=True)))
        costs = load_costs(None) if given.host_paced is None else host_paced(given.host_paced / 1000)
        tracking = given.tracking_ms / 1000
        setting = Setting(texts, costs, given.batches, given.rounds, with_arrivals=False, tracking=tracking)
        contenders, _ = pick([POLICY, LOOKUPS], setting)
        plays = [play(replace(setting, seed=seed), contenders) for seed in range(given.seeds)]
    except SimulationError as error:
        print(f"benchmarks.lookup_replay: {error}", file=sys.stderr)
        return 2
    cells = list(zip(*plays, strict=True))
    for name in texts:
        for batch in map(str, given.batches):
            print(_said(name, batch, [cell for cell in cells if (cell[0].texts, cell[0].load) == (name, batch)]))
    if given.json:
        report = Report(given.json, "lookup_replay", argv, acceptance=REPLAYED)
        report.add(columns=COLUMNS, cells=[_row(cell) for cell in cells])
        report.write()
    return 0


def mixed(chat: Texts, edits: Texts) -> Texts:
    """Return requests of both, a quarter of them *edits*."""
    again = np.resize(np.arange(len(edits.begin)), len(chat.begin) // 3)
    begin, end = (
        np.concatenate([one, len(chat.accepted) + other[again]])
        for one, other in ((chat.begin, edits.begin), (chat.end, edits.end))
    )
    assert chat.match and chat.looked_up and edits.match and edits.looked_up
    return Texts(
        chat.accepted + edits.accepted, begin, end, np.zeros(len(begin), dtype=np.int64), ("mixed",),
        chat.match + edits.match, chat.looked_up + edits.looked_up,
    )  # fmt: skip


def host_paced(seconds: float) -> dict[str, RoundCost]:
    """Return round times of *seconds* at every batch size and depth."""
    sizes = (1, max(sizes[-1] * (drafts + 1) for drafts, sizes in KINDS.items()))
    return {"host-paced": RoundCost.from_cells({(size, steps): seconds for size in sizes for steps in DEPTHS})}


def _said(name: str, batch: str, cells: Sequence[Plays]) -> str:
    over_best = [_mean(cell, LOOKUPS) for cell in cells]
    over_own = [_mean(cell, LOOKUPS) / _mean(cell, POLICY) for cell in cells]
    return (
        f"{name}, batch {batch}: over the best depth {fmean(over_best):.3f} ({min(over_best):.3f} to "
        f"{max(over_best):.3f}), over the policy without lookups {fmean(over_own):.3f} ({min(over_own):.3f} to "
        f"{max(over_own):.3f}), {len(cells)} scenes and profiles"
    )


def _row(plays: Plays) -> list[object]:
    cell = plays[0]
    figures = [round(_mean(plays, name), 4) for name in (POLICY, LOOKUPS)]
    return [cell.texts, cell.scene, int(cell.load), cell.profile, cell.best_single, *figures]


def _mean(plays: Plays, name: str) -> float:
    return fmean(play.scores[name].over_single for play in plays)


def parser() -> argparse.ArgumentParser:
    found = command_parser("lookup_replay", __doc__)
    found.add_argument("--texts", type=Path, action="append", help="recording with lookups (default: the three)")
    found.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="approximate rounds per cell")
    found.add_argument("--seeds", type=int, default=1, help="runs per cell (default: 1)")
    found.add_argument("--host-paced", type=float, metavar="MS", help="time of every round (default: profiles)")
    found.add_argument("--tracking-ms", type=float, default=1000 * TRACKING_SECONDS, help="that tracking texts takes")
    found.add_argument("--batches", type=ints, default=list(BATCHES))
    found.add_argument("--json", type=Path)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
