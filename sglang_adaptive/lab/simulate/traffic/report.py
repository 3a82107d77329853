"""The report on an operator's traffic: text, JSON, and one HTML page."""

from __future__ import annotations

from html import escape
from typing import Any

from sglang_adaptive.command_line import listed
from sglang_adaptive.lab.simulate.real.cell import Cell
from sglang_adaptive.lab.simulate.report import table
from sglang_adaptive.lab.simulate.traffic.command import Replay, lines_of
from sglang_adaptive.lab.simulate.traffic.rounds import FEWEST_ROUNDS, Seen
from sglang_adaptive.lookups.tally import lookup_words
from sglang_adaptive.report.html import STYLE, Chart

FORMAT = 1
TITLE = "Your traffic under every policy and depth"
SEEN_HEAD = ("steps", "rounds run", "tokens a round, then", "tokens a round, re-cut", "seen at or above", "trust")
HOW = (
    "A run is the tokens of a request from one rejected draft to the next. Steps t take ceil(run / (t + 1)) rounds for "
    "it. That is close where rounds of t steps or more were seen, and an upper bound where only shallower ones were."
)


def text_report(replay: Replay) -> str:
    """Return what was seen of each depth, and a table of each batch size."""
    parts = [
        _summary(replay),
        "What was seen\n" + table(SEEN_HEAD, [_seen_row(one) for one in replay.seen]),
        *(_cell_text(cell, replay) for cell in replay.cells),
        *lookup_words(replay.lookups),
        HOW,
    ]
    return "\n\n".join([*parts, *_doubts(replay)])


def json_report(replay: Replay) -> dict[str, Any]:
    """Return the report as JSON builtins."""
    return {
        "format": FORMAT,
        "provenance": replay.source,
        "definition": HOW,
        "rounds": replay.rounds.count,
        "rounds_lost": replay.rounds.lost,
        "requests": len(replay.rounds.requests),
        "rounds_by_batch_size": {str(size): count for size, count in sorted(replay.rounds.batches.items())},
        "doubts": _doubts(replay),
        "lookups": replay.lookups,
        "depths": [
            {
                "steps": one.steps,
                "rounds_run": one.rounds,
                "tokens_a_round_when_run": _rounded(one.tokens_when_run),
                "tokens_a_round_recut": round(one.tokens_recut, 4),
                "share_seen_here_or_deeper": round(one.from_here_up, 4),
                "trust": one.trust,
            }
            for one in replay.seen
        ],
        "batches": [
            {
                "batch_size": int(cell.load),
                "best_single": cell.best_single,
                "tokens_per_second_at_best_single": round(cell.singles[cell.best_single] * int(cell.load), 1),
                "over_best_single": {name: round(share, 5) for name, share, _ in lines_of(cell)},
                "switches_an_hour": {name: round(score.switches, 1) for name, score in cell.scores.items()},
            }
            for cell in replay.cells
        ],
    }


def html_report(replay: Replay) -> str:
    """Return one page that needs nothing from outside."""
    cards = "".join(
        f'<div class="card"><h3>batch {cell.load}</h3>'
        f'<div class="soft">best single depth: {cell.best_single}</div>{_chart(cell)}</div>'
        for cell in replay.cells
    )
    doubts = "".join(f"<p>{escape(doubt)}</p>" for doubt in _doubts(replay))
    versions = replay.source["versions"]
    facts = {key: value for key, value in replay.source.items() if key != "versions"} | versions
    listed = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    body = (
        f'<h1>{TITLE}</h1><p class="soft">{escape(_summary(replay))}</p>{doubts}'
        f'<h2>Tokens a second over the best single depth</h2><div class="cards">{cards}</div>'
        f"<h2>What was seen of each depth</h2>{_seen_table(replay.seen)}"
        f"{''.join(f'<p>{escape(line)}</p>' for line in lookup_words(replay.lookups))}"
        f"<h2>How to read and repeat this</h2><p>{escape(HOW)}</p><dl>{listed}</dl>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _summary(replay: Replay) -> str:
    rounds = replay.rounds
    lost = f", {rounds.lost} not written down" if rounds.lost else ""
    sizes = ", ".join(cell.load for cell in replay.cells)
    return (
        f"{rounds.count} rounds{lost}, {len(rounds.requests)} requests, batch {min(rounds.batches)} to "
        f"{max(rounds.batches)}; played as closed loops of {sizes}, round times of {replay.source['profile']}"
    )


def _doubts(replay: Replay) -> list[str]:
    """Return what makes the figures uncertain beyond the trust of each depth."""
    found = []
    every = (steps for stretches in replay.rounds.requests.values() for stretch in stretches for steps, _ in stretch)
    drafted = sum(steps > 0 for steps in every)
    unplayed = sorted(replay.rounds.steps.keys() - {one.steps for one in replay.seen})
    if unplayed:
        found.append(
            f"Rounds ran at {listed(unplayed)} steps, of which {replay.source['profile']} has no times: their runs are "
            "cut anew, and these depths are not played."
        )
    if drafted < FEWEST_ROUNDS:
        found.append(f"Only {drafted} rounds of requests drafted: fewer than {FEWEST_ROUNDS} say little.")
    late = {one.steps: one for one in replay.seen}
    for cell in replay.cells:
        best = late[cell.best_single]
        if best.trust != "close":
            found.append(f"Batch {cell.load}, trust in the best single depth, {best.steps} steps: {best.trust}.")
    return found


def _seen_row(one: Seen) -> list[str]:
    run = "" if one.tokens_when_run is None else f"{one.tokens_when_run:.2f}"
    return [str(one.steps), str(one.rounds), run, f"{one.tokens_recut:.2f}", f"{one.from_here_up:.0%}", one.trust]


def _seen_table(seen: list[Seen]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in SEEN_HEAD)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _seen_row(one))}</tr>" for one in seen)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _cell_text(cell: Cell, replay: Replay) -> str:
    trust = {f"always {one.steps}": one.trust for one in replay.seen}
    rows = [
        [name, f"{share:.3f}", "" if switches is None else f"{switches:.0f}", trust.get(name, "")]
        for name, share, switches in lines_of(cell)
    ]
    rate = cell.singles[cell.best_single] * int(cell.load)
    title = f"Batch {cell.load}: over {cell.best_single} steps, the best single depth, {rate:.0f} tokens/s"
    return f"{title}\n" + table(["", "over best single", "switches an hour", "trust"], rows)


def _chart(cell: Cell) -> str:
    lines = lines_of(cell)
    row, low = 20.0, min(share for _, share, _ in lines)
    high = max(share for _, share, _ in lines)
    floor, top = int(low * 10) / 10, max(1.05, high + 0.01)
    chart = Chart(len(lines) * row + 30, (floor, top), (0, 1), left=100, label=f"batch {cell.load}")
    step = 0.1 if top - floor < 0.9 else 0.2
    chart.x_ticks([(floor + i * step, f"{floor + i * step:.1f}") for i in range(int((top - floor) / step) + 1)], True)
    for place, (name, share, _) in enumerate(lines):
        at = chart.top + row * (place + 0.5)
        chart.text(chart.left - 8, at + 3, name, "end", "label")
        chart.range_dot(floor, share, at, _colour(name), f"{name}: {share:.3f}")
    return chart.render()


def _colour(name: str) -> str:
    return name if name in ("throughput", "ema", "ema-all") else "static" if name.startswith("always") else "oracle"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
