"""``sglang-adaptive explain``: explains the ``adaptive`` block of a live server's state in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang_adaptive.client import AdaptiveServer, Client, NotReady
from sglang_adaptive.command_line import DONE, PROBLEM, CommandParser, add_server, failed, listed
from sglang_adaptive.policy.throughput.probing import ALLOWANCE_ROUNDS
from sglang_adaptive.validate import batch_sizes

_CAUSES = {
    "acceptance": "recent acceptance favored it",
    "batch size": "the batch size became {batch_size}",
    "probe": "a probe of another depth began or ended",
    "lookup": "the text began or stopped copying itself",
    "capacity": "a context or the KV cache became nearly full, or no longer is",
    "forced": "an operator forced it",
    "released": "an operator released it",
    "degraded": "the policy failed, or the audit found a wrong token",
    "audit": "finished requests were decoded again",
    "configuration": "the configuration was changed",
}


def parser() -> CommandParser:
    found = CommandParser(
        "explain",
        "Reads a live server's /server_info and says which depth is live, since when, why, and what would change it.",
        [("--url http://127.0.0.1:30000", "why does it run this depth?")],
        "0 done; 1 the server is not adaptive or does not answer; 2 bad usage",
    )
    add_server(found)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, 1 if the server is not adaptive or gone, 2 for bad usage."""
    arguments = parser().parse_args(argv)
    try:
        server = AdaptiveServer(Client.from_url(arguments.url, api_key=arguments.api_key, timeout=30))
    except NotReady as error:
        return failed("explain", str(error), PROBLEM)
    print("\n".join(explain(server.state)))
    for other in server.info["internal_states"][1:]:
        for line in alarm_words(other["adaptive"]):
            print(f"Replica {other['adaptive']['dp_rank']}: {line}")
    return DONE


def explain(state: dict[str, Any]) -> Iterator[str]:
    """Yield lines about the ``adaptive`` block of a /server_info."""
    depths = ladder(state)
    yield f"Current depth: {_steps(state['current_steps'])}; configured depths: {listed(depths)}."
    if lookups := looked_up(state):
        yield f"Rounds may also verify {listed(lookups)} drafts looked up in text."
        for kind, words in (("own_text", "each request's own text"), ("memory", "other requests' texts")):
            if brought := state["lookup_rounds"][kind]:
                yield f"Those of {words} have brought {brought['tokens']} tokens in {brought['rounds']} rounds."
    if left_out := [steps for steps in state["tiers"] if steps not in (*depths, *lookups)]:
        yield f"Built, but not used by the current configuration: {listed(left_out)}."
    if state["recent_switches"]:
        last = state["recent_switches"][-1]
        moved = f"{last['from_steps']} to {last['to_steps']} steps"
        yield f"Last of {state['switches']} switches, {_moment(last['time'])}: {moved}, because {because(last)}."
    else:
        yield "It has not switched yet."
    yield from alarm_words(state)
    if state["degraded"]:
        yield f"The policy was set aside: {state['degraded_reason']}."
        yield f"The server holds the depth at {state['degraded_steps']} until it is configured again; see its log."
        yield "Send it a configuration, the same or another, to start a policy again."
        return
    if state["forced_steps"] is not None:
        yield f"An operator holds the depth at {state['forced_steps']}; null in adaptive_force_steps releases it."
    yield from _ledger(state)
    for slot in state.get("slots", ()):
        yield from slot_words(slot)
    if "rates" in state:
        yield from _rates(state)


def alarm_words(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each alarm now raised."""
    for alarm in state.get("alarms", ()):  # none where it does not adapt
        yield f"Alarm since {_moment(alarm['since'])}, {alarm['name']}: {alarm['words']}."


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _ledger(state: dict[str, Any]) -> Iterator[str]:
    rounds = {int(tier): count for tier, count in state["rounds_by_tier"].items() if count}
    total = sum(rounds.values())
    if not total:
        yield "No round has been verified yet."
        return
    shares = listed([f"{100 * count / total:.0f}% at {tier}" for tier, count in sorted(rounds.items())])
    drafted, accepted = sum(state["drafted_by_tier"].values()), sum(state["accepted_by_tier"].values())
    kept = f"; {100 * accepted / drafted:.0f}% of the drafts were accepted" if drafted else ""
    yield f"Rounds so far: {total}, {shares}{kept}."


def slot_words(slot: dict[str, Any]) -> Iterator[str]:
    """Yield what one slot of the EMA policy runs, and what would change that."""
    if slot["batch_range"] is None:
        return
    sizes = batch_sizes(slot["batch_range"])
    if not slot["batches"]:
        yield f"{sizes}: {_steps(slot['steps'])}; nothing seen yet."
        return
    yield (
        f"{sizes}: {_steps(slot['steps'])}; the moving average of accepted drafts is {slot['ema_accept_len']:.2f} "
        f"after {slot['batches']} rounds. {_what_next(slot)}"
    )


def _what_next(slot: dict[str, Any]) -> str:
    if slot["steps"] == 0:
        return "Without drafts nothing is learned, so the next decision tries the next depth."
    ladder = slot["candidate_steps"]
    here = ladder.index(slot["steps"])
    told = []
    if slot["drop_at"] is not None:
        told.append(f"down to {ladder[here - 1]} at {slot['drop_at']:.2f} or below")
    if slot["rise_above"] is not None:
        told.append(f"up to {ladder[here + 1]} above {slot['rise_above']:.2f}")
    return f"It goes {' and '.join(told)}." if told else "It is the only depth of this slot."


def _rates(state: dict[str, Any]) -> Iterator[str]:
    yield f"Why: {state['why']['words']}."
    accepted = listed([f"{100 * position['probability']:.0f}%" for position in state["acceptance"]])
    yield f"Chance to accept a draft after the one before it, at positions 1 to {len(state['acceptance'])}: {accepted}."
    yield f"Expected speed of each depth at batch size {state['batch_size']}:"
    yield f"  {'steps':>5}{'tokens/s':>12}{'tokens per round':>18}{'ms per round':>14}   round time is"
    for rate in state["rates"]:
        live = rate["steps"] == state["current_steps"]
        mark = "  <- live" if live else "" if rate["allowed"] else "  (not used here)"
        yield (
            f"  {rate['steps']:>5}{rate['tokens_per_second']:>12.1f}{rate['tokens_per_round']:>18.2f}"
            f"{1000 * rate['seconds']:>14.2f}   {rate['source']}{mark}"
        )
    probes = state["probes"]
    yield (
        f"{probes['started']} probes of other depths have cost at most {probes['charged_seconds']:.2f} s, "
        f"{100 * probes['share']:.2f}% of the time of all the policy's rounds so far."
    )
    yield (
        f"Their budget is {100 * probes['budget']:.2f}% of that time plus an advance of {ALLOWANCE_ROUNDS:.0f} "
        "rounds at each batch size, so they may have cost more of a short time."
    )


def _steps(count: int) -> str:
    return "no drafts" if count == 0 else f"{count} step" if count == 1 else f"{count} steps"


def because(switch: Mapping[str, Any]) -> str:
    """Return the cause of a record of ``recent_switches`` in words; an unknown cause unchanged."""
    return _CAUSES.get(switch["cause"], switch["cause"]).format(batch_size=switch["batch_size"])


def looked_up(state: Mapping[str, Any]) -> list[int]:
    """Return the drafts of lookup rounds, if the server has such rounds."""
    return [int(drafts) for drafts in (state.get("lookup_rounds") or {"requests": ()})["requests"]]


def ladder(state: Mapping[str, Any]) -> list[int]:
    """Return the depths that the current configuration may choose, ascending.

    A server keeps every depth it built, so a later configuration may omit some; an operator may still hold them. For a
    policy that does not report its own depths, all are returned.
    """
    told = {rate["steps"] for rate in state.get("rates", ())}
    told.update(steps for slot in state.get("slots", ()) for steps in slot["candidate_steps"])
    return sorted(told) or list(state["tiers"])
