"""``sglang-adaptive validate``: checks a configuration as a server does, and describes it in words."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sglang_adaptive.command_line import BAD_INPUT, DONE, PROGRAM, CommandParser, listed
from sglang_adaptive.policy import options
from sglang_adaptive.policy.config import AdaptiveConfig, load_config, presets, require_texts
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.throughput.lookups import LEAST_SECONDS

MEASURED = {
    "throughput": "tokens/s of several shapes",
    "llama-3.1-8b": "tokens/s of its shape, one H200",
    "qwen3-30b-a3b": "tokens/s of its shape, one H200",
    "qwen3-32b": "round times of its shape, one H200",
    "llama-3.3-70b": "round times of its shape, two H200s",
    "ngram": "tokens/s at 0 and 7 drafts, an 8B shape, one H100",
}
"""What was measured on a GPU with a preset's steps, in benchmarks/results/ and configs/profiles/; others: nothing."""
UNMEASURED = "no"


def facts(config: AdaptiveConfig) -> dict[str, Any]:
    """Return policy, steps, drafts of lookup rounds, behavior by batch size, and differences from the defaults.

    They are JSON builtins. What was measured is None for anything but a preset.
    """
    of_policy = config.options.facts()
    source = Path(config.source).resolve()
    preset = next((name for name, path in presets().items() if path.resolve() == source), None)
    return {
        "policy": config.policy,
        "summary": config.options.summary,
        "candidate_steps": config.candidate_steps,
        "measured": None if preset is None else MEASURED.get(preset, UNMEASURED),
        "watch": config.watch,
        "lookup_drafts": list(config.options.lookup_kinds),
        **of_policy,
        "changed": [*options.changed(config, ""), *of_policy["changed"]],
    }


WIDTH = 115
"""Most characters per line of a policy's summary."""


def words(found: dict[str, Any]) -> Iterator[str]:
    """Yield lines that describe the result of ``facts``."""
    yield from textwrap.wrap(f'Policy "{found["policy"]}": {found["summary"]}'.rstrip(": "), WIDTH)
    depths = found["candidate_steps"]
    what = "backends and graphs are built" if len(depths) == 1 else "for each, backends and graphs are built"
    yield f"Depths: {listed(depths)} draft steps; {what} when the server starts."
    if found["measured"] is not None:
        told = "nobody has timed its steps" if found["measured"] == UNMEASURED else found["measured"]
        yield f"Measured with this preset on a GPU: {told}."
    yield from _of_slots(found["slots"]) if "slots" in found else _of_options(found["options"])
    yield from _of_lookups(found)
    if found["watch"]:
        yield "The server reloads the file when it changes, and keeps the old one if the new one is invalid."
    yield ""
    yield from _changed(found["changed"])


def _of_slots(slots: list[dict[str, Any]]) -> Iterator[str]:
    for slot in slots:
        sizes, ladder = batch_sizes(slot["batch_range"]), slot["candidate_steps"]
        yield ""
        if len(ladder) == 1:
            yield f"{sizes}: always {steps(ladder[0])}."
            continue
        yield f"{sizes}: {listed(ladder, 'or')} draft steps, at first {slot['starts_at']}."
        yield f"  rises: {', '.join(_rise(move) for move in slot['moves'] if move['up_to'] is not None)}"
        yield f"  falls: {', '.join(_drop(move) for move in reversed(slot['moves']) if move['down_to'] is not None)}"
        first, every = slot["first_decision_after_rounds"], slot["rounds_between_decisions"]
        yield (
            f"  decides after {first} rounds, then every {'round' if every == 1 else f'{every} rounds'}; "
            f"the newest round weighs {100 * slot['ema_alpha']:g}% of the average"
        )
        if slot["ceiling_coeff"]:
            yield f"  unless it rises, never deeper than the average times {slot['ceiling_coeff']:g}, rounded up"
    yield ""
    yield "A slot starts at the server's --speculative-num-steps if that is one of its depths."
    yield "With CUDA graphs, a batch belongs to the slot of the graph size that it is padded to."


def _rise(move: dict[str, Any]) -> str:
    here, there = move["steps"], move["up_to"]
    if here == 0:
        return f"0 to {there} at every decision, because nothing is learned without drafts"
    if move["rise_above"] >= here:  # no more than all drafts can be accepted
        return f"{here} to {there} never (the average would have to pass {move['rise_above']:.2f})"
    return f"{here} to {there} above {move['rise_above']:.2f}"


def _drop(move: dict[str, Any]) -> str:
    here, there = move["steps"], move["down_to"]
    if move["drop_at"] < 0:
        return f"{here} to {there} never (the average would have to fall to {move['drop_at']:.2f})"
    return f"{here} to {there} at {move['drop_at']:.2f} or below"


def _of_options(options: dict[str, Any]) -> Iterator[str]:
    ladder = options["candidate_steps"]
    if len(ladder) > 1 and "probe_budget" in options:
        if ladder[0] == 0:
            yield "May stop drafting (0 steps) at any batch size where no depth promises more speed."
        else:
            yield "Always drafts: 0 is not among the depths."
        if (budget := options["probe_budget"]) == 0:
            yield "Never tries other depths just to learn about them."
        else:
            share = f"{100 * budget:g}%"
            yield f"Tries other depths now and then to learn about them, at a cost of at most {share} of the time."
    if "memory_rounds" in options:
        rounds = options["memory_rounds"]
        yield f"The weight of an accept count falls to 1/e after {rounds} rounds; each request is tracked separately."
    if "profile_dir" in options:
        folder = options["profile_dir"] or "the user's cache folder"
        yield f"Round times are kept between server starts in {folder}."


def _of_lookups(found: dict[str, Any]) -> Iterator[str]:
    options, drafts = found.get("options", {}), found["lookup_drafts"]
    if not drafts:
        why = f'the policy "{found["policy"]}" has none'
        if "lookup" in options:
            why = "candidate_steps has all of their numbers of drafts" if options["lookup"] else "lookup is false"
        yield f"Lookups are off: {why}."
        return
    what = f"rounds may verify {listed(drafts, 'or')} drafts copied from a request's text"
    if options["lookup"] == "auto":
        yield f"Lookups are auto: {what}, while live rounds take at least {1000 * LEAST_SECONDS:g} ms."
        yield 'NGRAM, block drafters, DeepSeek-V4 and some other setups have none: see "off" in /server_info.'
    else:
        yield f"Lookups are on: {what}, however short rounds are."
        yield "NGRAM, block drafters and DeepSeek-V4 refuse that; in other setups without lookups the log says why."
    if not options["lookup_memory_mb"]:
        yield "Texts of other requests are not searched: lookup_memory_mb is 0."
        return
    file = f", from the start those of {options['lookup_texts']}" if options["lookup_texts"] else ""
    yield f"Texts of other requests are searched too, in {options['lookup_memory_mb']} MB of each rank{file}."


def _changed(changed: list[dict[str, Any]]) -> Iterator[str]:
    if not changed:
        yield "Nothing differs from the defaults."
        return
    yield "Differs from the defaults:"

    def change(entry: dict[str, Any]) -> str:
        value, default = json.dumps(entry["value"]), json.dumps(entry["default"])
        return f"{entry['key'].rpartition('.')[2]} is {value} instead of {default}: {entry['meaning']}"

    for line, entries in groupby(sorted(changed, key=change), key=change):
        keys = [entry["key"].rpartition(".")[0] for entry in entries]
        slots = (
            f" (slot{'s' * (len(keys) > 1)} {listed(sorted(map(int, keys)))})" if all(map(str.isdigit, keys)) else ""
        )
        yield f"  {line}{slots}"


def batch_sizes(batch_range: list[int | None]) -> str:
    """Return a range of batch sizes in words; an end of None is open."""
    low, high = batch_range
    if high is None:
        return f"Batch sizes from {low}"
    return f"Batch size {low}" if low == high else f"Batch sizes {low} to {high}"


def steps(count: int) -> str:
    """Return a number of steps in words."""
    return "no drafts" if count == 0 else f"{count} draft step{'s' * (count > 1)}"


def parser() -> CommandParser:
    found = CommandParser(
        "validate",
        "Checks a configuration with the server's own code, and prints the same one-line error. Describes a valid one "
        "in plain words: which depths run at which batch sizes, when the depth rises and falls, and what differs "
        "from the defaults. Needs neither SGLang nor a GPU, and is instant.",
        [("conservative", "what will this preset do?"), ("aggressive --json", "the same for a script")],
        "0 the configuration is valid; 2 it is not, or bad usage",
    )
    found.add_argument(
        "file", metavar="FILE", help="a file or the name of a preset, as for --speculative-adaptive-config"
    )
    found.add_argument("--json", action="store_true", help="print the description or the error as one JSON object")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, or 2 if a server would refuse the file."""
    arguments = parser().parse_args(argv)
    try:
        config = load_config(arguments.file)
        require_texts(config.options)
        found = facts(config)
    except ConfigError as error:
        # The same line that a server prints before it stops.
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        if arguments.json:
            told = {name: getattr(error, name) for name in ("file", "key", "problem", "expected")}
            print(json.dumps({"valid": False, **told, "error": str(error)}, indent=1))
        return BAD_INPUT
    lines = list(words(found))
    if arguments.json:
        print(json.dumps({"valid": True, "file": arguments.file, **found, "words": lines}, indent=1))
    else:
        print("\n".join([f"{arguments.file}: valid", "", *lines]))
    return DONE
