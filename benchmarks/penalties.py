"""Tokens/s with penalties and without, at one held depth of one server, in turns. SmolLM2 and its draft.

    python -m benchmarks.penalties --work DIR

The mixes: no penalty; a penalty too small to change a text, which costs what any costs; and one that changes texts and
with them how many drafts are accepted. A ratio is that of a mix to no penalty, over turns with the same questions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import load, start
from benchmarks.harness.load import greedy, in_blocks
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import POLICIES, Policy, Server
from benchmarks.harness.turns import Race, over
from benchmarks.served import REAL, one_pass, tokenized

SCHEMA = "penalties-1"
NONE = "none"
MIXES: Mapping[str, Mapping[str, float]] = {
    NONE: {},
    "too small": {"frequency_penalty": 1e-6, "presence_penalty": 1e-6},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.3},
}


@dataclass(frozen=True)
class Mix:
    """One contender of a turn."""

    name: str
    sampling: Mapping[str, float]


def main(argv: Sequence[str]) -> int:
    """Start the server, run the turns and write penalties.json; returns 0, or 1 if the server did not start."""
    parser = command_parser("penalties", __doc__)
    start.add_options(parser, budget=300)
    parser.add_argument("--steps", type=int, default=3, help="draft steps to hold")
    parser.add_argument("--batches", type=start.ints, default=[1, 16, 64])
    parser.add_argument("--requests", type=start.pairs, default=[(1, 4), (16, 48), (64, 128)], help="BATCH:N,...")
    parser.add_argument("--tokens", type=int, default=192, help="new tokens per request")
    parser.add_argument("--error", type=float, default=0.01, help="stop at this relative standard error")
    given = parser.parse_args(argv)
    end = start.begin(given)
    most = max(given.batches)
    host = start.smollm2(given.models, most, given.host == "cpu", given.server_arguments, kv_tokens=most * 2000)

    def make(policy: Policy) -> Server:
        return start.policy_server(policy, host, given.work, simulate=False)

    report = Report(given.results / "penalties.json", "penalties", argv, schema=SCHEMA, what=REAL, mixes=MIXES)
    servers = start.start_all([POLICIES["throughput"]], make, end)
    if not servers:
        return 1
    contender, many = start.Contender(servers[0], given.steps), dict(given.requests)
    questions = tokenized(start.smollm2_folders(given.models)[0])

    def serve(mix: Mix, size: int, number: int) -> dict[str, Any]:
        sampling = greedy(given.tokens, **mix.sampling)
        blocks = in_blocks(
            len(questions), lambda batch: many.get(batch, 4 * batch),
            lambda item, place: {"input_ids": questions[item], "sampling_params": sampling},
        )  # fmt: skip
        return one_pass(contender, many.get(size, 4 * size), size, blocks(number, size))

    mixes = [Mix(name, sampling) for name, sampling in MIXES.items()]
    report.add(server=servers[0].described()["command"], steps=given.steps, tokens=given.tokens)
    for size in given.batches:
        for mix in mixes:
            with report.noting(f"warm-up of {mix.name}, batch {size}"):
                sampling = greedy(32, **mix.sampling)
                body = {"input_ids": questions[0], "sampling_params": sampling}
                load.run_list(servers[0].client.url, size, size, lambda request, place, body=body: body)
    race = Race(
        lambda size, number: mixes, given.batches, serve, report, end=end, error=given.error, ours=NONE,
    )  # fmt: skip
    report.content["batches"] = race.turns
    race.run()
    report.add(off=servers[0].states()[0]["off"], ratios={
        size: {mix.name: str(over(turns, NONE, mix.name)) for mix in mixes[1:]} for size, turns in race.turns.items()
    })  # fmt: skip
    for size, ratios in report.content["ratios"].items():
        report.say(f"batch {size}, of the tokens/s without penalties: {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
