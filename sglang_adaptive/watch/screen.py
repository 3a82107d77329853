"""Draws the view on a terminal, with rich."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sglang_adaptive.watch.view import DEGRADED, IDLE, SERVING

COLOURS = {SERVING: "green", IDLE: "cyan", DEGRADED: "red"}
SWITCHES_SHOWN = 6
BAR = 14
"""Characters of the longest bar."""
ROOMY = 76
"""Minimum columns for drawing bars."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters and the width of a terminal."""

    bar: str = "█"
    levels: str = "▁▂▃▄▅▆▇█"
    roomy: bool = True
    """Whether bars and notes fit beside the figures."""

    @classmethod
    def of(cls, encoding: str, columns: int) -> Marks:
        """Return the marks for a stream of *encoding* that is *columns* wide."""
        roomy = columns >= ROOMY
        return cls(roomy=roomy) if encoding.lower().startswith("utf") else cls("#", ".:-=+*#@", roomy)


def screen(view: dict[str, Any], history: Sequence[dict[str, Any]], marks: Marks) -> RenderableType:
    """Return one frame; *history* holds the views so far, the latest last."""
    parts: list[RenderableType] = [_head(view)]
    if "depth" in view:
        parts += [_figures(view), *_history(history, marks), *_depths(view, marks)]
        parts += [*_slots(view), *_acceptance(view, marks), *_switches(view)]
    return Group(*parts)


def _head(view: dict[str, Any]) -> Text:
    colour = COLOURS.get(view["state"], "yellow")
    moment = time.strftime("%H:%M:%S", time.localtime(view["time"]))
    return Text.from_markup(
        f"[bold]{escape(view['url'])}[/bold]  {moment}  [bold {colour}]{view['state']}[/]: {escape(view['words'])}"
    )


def _figures(view: dict[str, Any]) -> Text:
    passed = view["since_last"] or {}
    rate, length = passed.get("tokens_per_second"), passed.get("accept_length")
    parts = [
        f"policy {view['policy']}",
        f"depth [bold]{view['depth']}[/bold]",
        f"tokens/s [bold]{'-' if rate is None else f'{rate:.1f}'}[/bold]",
        f"accept length [bold]{'-' if length is None else f'{length:.2f}'}[/bold]",
    ]
    if view["batch_size"]:
        parts.append(f"batch size {view['batch_size']}")
    if view["forced_depth"] is not None:
        parts.append(f"[yellow]held at {view['forced_depth']} by an operator[/yellow]")
    lines = "   ".join(parts)
    worth = (view["worth"] or {}).get("words")
    told = f"\nworth: [bold]{escape(worth)}[/bold]" if worth else ""
    return Text.from_markup(f"\n{lines}{told}" + (f"\n[dim]why: {escape(view['why'])}[/dim]" if view["why"] else ""))


def _history(history: Sequence[dict[str, Any]], marks: Marks) -> list[RenderableType]:
    seen = [view for view in history if view.get("since_last")]
    if len(seen) < 2:
        return []
    rates = [view["since_last"]["tokens_per_second"] for view in seen]
    depths = [view["depth"] for view in seen]
    lines = [f"depth     {_levels(depths, marks)} {min(depths)} to {max(depths)}"]
    lines.append(f"tokens/s  {_levels(rates, marks)} {min(rates):.0f} to {max(rates):.0f}")
    return [Text("\n" + "\n".join(lines), no_wrap=True)]


def _levels(values: Sequence[float], marks: Marks) -> str:
    high, steps = max(values) or 1.0, len(marks.levels)
    return "".join(marks.levels[min(steps - 1, int(value / high * steps))] for value in values)


def _table(title: str, *columns: str, numbers: int) -> tuple[Text, Table]:
    """Return a heading and an empty table whose first *numbers* columns hold figures."""
    table = Table(box=None, padding=(0, 1), show_header=any(columns))
    for index, name in enumerate(columns):
        right = index < numbers
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=right, vertical="bottom")
    return Text(f"\n{title}", style="bold"), table


def _depths(view: dict[str, Any], marks: Marks) -> Iterator[RenderableType]:
    rows = view["by_depth"]
    promised = [row["expected_tokens_per_second"] for row in rows if row["expected_tokens_per_second"]]
    names = ["depth", "rounds\nnow", "accept\nlength"]
    if promised:
        names += ["expected\ntokens/s", "ms per\nround"]
    more = ["", "round time is"] if promised and marks.roomy else []
    heading, table = _table("By depth", *names, *more, numbers=len(names))
    for row in rows:
        share, length = row["share_of_rounds"], row["accept_length"]
        cells = [f"{'>' if row['live'] else ' '} {row['depth']}"]
        cells += [f"{share:.0%}" if share else "-", f"{length:.2f}" if length else "-"]
        rate = row["expected_tokens_per_second"]
        if promised:
            seconds = row["round_milliseconds"]
            cells += ["-" if rate is None else f"{rate:.1f}", "-" if seconds is None else f"{seconds:.2f}"]
        if more:
            bar = marks.bar * round(BAR * (rate or 0.0) / max(promised))
            left_out = row["round_time_is"] is None
            unused = "left out by the configuration" if left_out else "not used at this batch size"
            cells += [bar, row["round_time_is"] if row["allowed"] else unused]
        table.add_row(*cells, style="bold" if row["live"] else "" if row["allowed"] else "dim")
    yield from (heading, table)


def _slots(view: dict[str, Any]) -> Iterator[RenderableType]:
    slots = [slot for slot in view["slots"] if slot["batch_range"] is not None]
    if not slots:
        return
    names = ("batch\nsizes", "depth", "average\naccepted", "down\nat", "up\nabove")
    heading, table = _table("Slots of the EMA policy", *names, numbers=len(names))
    for slot in slots:
        low, high = slot["batch_range"]
        table.add_row(
            f"{low} up" if high is None else f"{low} to {high}",
            str(slot["steps"]),
            f"{slot['ema_accept_len']:.2f}" if slot["batches"] else "-",
            *("-" if at is None else f"{at:.2f}" for at in (slot["drop_at"], slot["rise_above"])),
        )
    yield from (heading, table)


def _acceptance(view: dict[str, Any], marks: Marks) -> Iterator[RenderableType]:
    if not view["acceptance"]:
        return
    heading, table = _table("Acceptance by position, given the draft before it", "", "", "", numbers=2)
    for entry in view["acceptance"]:
        bar = marks.bar * round(BAR * entry["probability"])
        table.add_row(str(entry["position"]), f"{entry['probability']:.0%}", bar)
    yield from (heading, table)


def _switches(view: dict[str, Any]) -> Iterator[RenderableType]:
    shown = view["recent_switches"][-SWITCHES_SHOWN:][::-1]
    if not shown:
        yield Text("\nIt has not switched yet.")
        return
    heading, table = _table(f"Latest of {view['switches']} switches", "", "", "", numbers=2)
    for switch in shown:
        ago = max(0.0, view["time"] - switch["time"])
        table.add_row(f"{ago:.0f} s ago", f"{switch['from_steps']} -> {switch['to_steps']}", switch["words"])
    yield from (heading, table)
