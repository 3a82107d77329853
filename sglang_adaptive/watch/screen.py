"""The view as it is drawn on a terminal, with rich."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sglang_adaptive.watch.view import DEGRADED, IDLE, SERVING

COLOURS = {SERVING: "green", IDLE: "cyan", DEGRADED: "red"}
SWITCHES_SHOWN = 6
BAR = 20
LEVELS = "▁▂▃▄▅▆▇█"


def screen(view: dict[str, Any], history: Sequence[dict[str, Any]], unicode: bool = True) -> RenderableType:
    """Return one frame; *history* holds the views until now, the latest last."""
    parts: list[RenderableType] = [_head(view)]
    if "depth" in view:
        parts.append(_figures(view))
        parts += _history(history, unicode)
        parts += [_depths(view, unicode), *_slots(view), *_acceptance(view, unicode), _switches(view)]
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
    return Text.from_markup(f"\n{lines}" + (f"\n[dim]why: {escape(view['why'])}[/dim]" if view["why"] else ""))


def _history(history: Sequence[dict[str, Any]], unicode: bool) -> list[RenderableType]:
    seen = [view for view in history if view.get("since_last")][-60:]
    if len(seen) < 2:
        return []
    rates = [view["since_last"]["tokens_per_second"] for view in seen]
    depths = [view["depth"] for view in seen]
    lines = [f"depth     {_levels(depths, unicode)} {min(depths)} to {max(depths)}"]
    lines.append(f"tokens/s  {_levels(rates, unicode)} {min(rates):.0f} to {max(rates):.0f}")
    return [Text("\n" + "\n".join(lines), no_wrap=True)]


def _levels(values: Sequence[float], unicode: bool) -> str:
    marks = LEVELS if unicode else ".:-=+*#@"
    high = max(values) or 1.0
    return "".join(marks[min(len(marks) - 1, int(value / high * len(marks)))] for value in values)


def _depths(view: dict[str, Any], unicode: bool) -> Table:
    rows = view["by_depth"]
    promised = [row["expected_tokens_per_second"] for row in rows if row["expected_tokens_per_second"]]
    table = Table(box=None, padding=(0, 1), title_justify="left", title="\nBy depth")
    for name in ("depth", "rounds now", "accept length"):
        table.add_column(name, justify="right")
    if promised:
        table.add_column("expected tokens/s", justify="right")
        table.add_column("")
        table.add_column("ms a round", justify="right")
        table.add_column("which is")
    for row in rows:
        share, length = row["share_of_rounds"], row["accept_length"]
        mark = ">" if row["live"] else " "
        cells = [f"{mark} {row['depth']}", f"{share:.0%}" if share else "-", f"{length:.2f}" if length else "-"]
        if promised:
            rate = row["expected_tokens_per_second"]
            bar = ("█" if unicode else "#") * round(BAR * rate / max(promised))
            is_what = row["round_time_is"] if row["allowed"] else "not used at this batch size"
            cells += [f"{rate:.1f}", bar, f"{row['round_milliseconds']:.2f}", is_what]
        table.add_row(*cells, style="bold" if row["live"] else "" if row["allowed"] else "dim")
    return table


def _slots(view: dict[str, Any]) -> list[RenderableType]:
    slots = [slot for slot in view["slots"] if slot["batch_range"] is not None]
    if not slots:
        return []
    table = Table(box=None, padding=(0, 1), title_justify="left", title="\nSlots of the EMA policy")
    for name in ("batch sizes", "depth", "average accepted", "down at", "up above"):
        table.add_column(name, justify="right")
    for slot in slots:
        low, high = slot["batch_range"]
        ways = [slot["drop_at"], slot["rise_above"]]
        table.add_row(
            f"{low} up" if high is None else f"{low} to {high}",
            str(slot["steps"]),
            f"{slot['ema_accept_len']:.2f}" if slot["batches"] else "-",
            *("-" if at is None else f"{at:.2f}" for at in ways),
        )
    return [table]


def _acceptance(view: dict[str, Any], unicode: bool) -> list[RenderableType]:
    if not view["acceptance"]:
        return []
    title = "\nAcceptance by position, given the draft before it"
    table = Table(box=None, padding=(0, 1), title_justify="left", title=title, show_header=False)
    for entry in view["acceptance"]:
        bar = ("█" if unicode else "#") * round(BAR * entry["probability"])
        table.add_row(str(entry["position"]), f"{entry['probability']:.0%}", bar)
    return [table]


def _switches(view: dict[str, Any]) -> RenderableType:
    shown = view["recent_switches"][-SWITCHES_SHOWN:][::-1]
    if not shown:
        return Text("\nIt has not switched yet.")
    table = Table(box=None, padding=(0, 1), title_justify="left", show_header=False)
    table.title = f"\nLatest of {view['switches']} switches"
    for switch in shown:
        ago = max(0.0, view["time"] - switch["time"])
        table.add_row(f"{ago:.0f} s ago", f"{switch['from_steps']} -> {switch['to_steps']}", escape(switch["words"]))
    return table
