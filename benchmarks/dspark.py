"""Check that DSPARK's planner learns what rounds cost on a GPU, keeps the text, and is faster for it.

A Qwen3 shape with the benchmarks' dummy weights and its own DSPARK draft is served three ways: without speculation,
with SGLang's DSPARK, which verifies everything, and with this package's configuration, which learns SGLang's table. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.harness import load, shapes, start, texts, weights
from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.start import Policy, Server

BATCHES = (1, 16, 64)
LARGEST = max(BATCHES)
NEW_TOKENS, TEXT_TOKENS = 512, 64
COMPACT = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
REFERENCE = Policy("none", speculate=False)
ALL = Policy("dspark-all", variables=COMPACT)
LEARNT = Policy("dspark-learnt", config={"policy": "throughput"}, ours=True, saved_profile=True, variables=COMPACT)
AGAIN = replace(LEARNT, name="dspark-again")
STOPPING = 15.0


class Run:
    """The whole run; its report is written after every step."""

    def __init__(self, given: argparse.Namespace, argv: Sequence[str]) -> None:
        self._given, self._end = given, start.begin(given) - STOPPING
        shapes.write_pair(given.models, given.target)
        draft = given.models / f"{given.target}-dspark"
        self._host = start.gpu(
            given.models, LARGEST, given.target, kv_tokens=60_000,
            extra=("--page-size", "1", "--attention-backend", given.attention, *given.server_arguments),
            speculation=(
                *("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(draft)),
                *("--speculative-draft-attention-backend", given.attention),
            ),
        )  # fmt: skip
        self.report = Report(given.results / "dspark.json", "dspark", argv, target=given.target, passes=[], texts=[])
        self._passes: list[dict[str, Any]] = self.report.content["passes"]
        self._in_time = partial(start.in_time, self._end)
        self._prompts = texts.prompts(max(texts.BATCHES), shapes.TARGETS[given.target]["vocab_size"])

    # -- servers

    def _server(self, policy: Policy) -> Server:
        folder = self._given.work
        command, drawn = partial(self._host.command, policy, folder), weights.environment(folder / "plugin")
        return start.server_of(policy, folder, command, False, drawn)

    def _started(self, *policies: Policy) -> list[Server]:
        servers = [self._server(policy) for policy in policies]
        for server in servers:
            server.launch()
        for server in servers:
            server.wait(self._end)
            self.report.say(f"{server.name} ready after {server.start_seconds} s: {' '.join(server.command)}")
        self.report.content.setdefault("starts", {}).update({server.name: server.startup() for server in servers})
        return servers

    # -- steps

    def all(self) -> None:
        """Run every step."""
        reference, learnt = self._started(REFERENCE, LEARNT)
        judge = texts.Judge(reference.client, self._prompts, self._in_time)
        for batch in texts.BATCHES:
            judge.expect(batch, texts.ask(reference.client, self._prompts[:batch], TEXT_TOKENS).outputs)
        self.report.content["reference"] = judge.about()
        self._texts("at the start", judge, learnt)
        for batch in BATCHES:
            self._load(learnt, batch, self._given.learn, "learning")
        self._texts("when it has learnt", judge, learnt)
        reference.stop(grace=0)
        if self._given.turns:
            (verify_all,) = self._started(ALL)
            for turn in range(self._given.turns):
                for batch in BATCHES:
                    for server in (learnt, verify_all) if turn % 2 == 0 else (verify_all, learnt):
                        self._load(server, batch, self._given.each, f"turn {turn}")
            verify_all.stop(grace=0)
        learnt.stop()
        if self._given.again:
            (again,) = self._started(AGAIN)
            self.report.content["profiled"] = self._seen(again)
            self._load(again, 16, self._given.each, "from the profile")

    def _texts(self, when: str, judge: texts.Judge, server: Server) -> None:
        for batch in texts.BATCHES:
            answers = texts.ask(server.client, self._prompts[:batch], TEXT_TOKENS)
            found = {"when": when, "batch": batch, "rounds": answers.rounds, "accepted": answers.accepted}
            found |= judge.judge(batch, answers.outputs)
            self.report.content["texts"].append(found)
            counts = {name: found[name] for name in (texts.EQUAL, texts.TIE, texts.DIFFERENT, "rounds", "accepted")}
            self.report.say(f"texts {when}, batch {batch}: {counts}")
            self.keep()

    def _load(self, server: Server, batch: int, seconds: float, when: str) -> None:
        """Decode batches of *batch* for at least *seconds*; keep each rate, and what was learned by then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._in_time()
            done = load.run_list(server.client.url, 2 * batch, batch, partial(_body, 1000 * len(self._passes)))
            seen = self._seen(server)
            rounds = sum(one["meta_info"].get("spec_verify_ct") or 0 for one in done.answers.values())
            self._passes.append({
                "server": server.name, "when": when, "batch": batch, "seconds": done.seconds, "tokens": done.tokens,
                "tokens_per_second": done.tokens / done.seconds, "failed": done.failed[:3],
                "tokens_per_round": done.tokens / rounds if rounds else None, "dspark": seen,
            })  # fmt: skip
            rate = done.tokens / done.seconds
            self.report.say(f"{server.name}, {when}, batch {batch}: {rate:.0f} tokens/s; {told(seen)}")
            self.keep()

    def _seen(self, server: Server) -> dict[str, Any] | None:
        if not server.policy.ours:
            return None
        states = server.states()
        return states[0].get("dspark") if states else None

    def keep(self) -> None:
        """Write the report."""
        self.report.add(summary=summary(self._passes))


def _body(first: int, number: int, place: int) -> load.Body:
    return load.request_body(first + number, NEW_TOKENS)


def told(seen: Mapping[str, Any] | None) -> str:
    """Return in one line what a server has learned."""
    if seen is None:
        return "nothing is learned there"
    times = {tokens: round(1000 * seconds, 3) for tokens, seconds in seen["seconds_by_tokens"].items()}
    state = "on" if seen["budget_is_on"] else f"off ({seen['why_not']})"
    return f"{seen['measured_rounds']} rounds measured, {seen['tried_rounds']} tried, budget {state}, ms {times}"


def summary(passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return tokens/s of the turns by batch and server, and the gain from learning."""
    found: dict[str, Any] = {}
    for batch in BATCHES:
        rates: dict[str, float] = {}
        for name in (ALL.name, LEARNT.name):
            own = [one for one in passes if (one["server"], one["batch"]) == (name, batch) and "turn" in one["when"]]
            if own:
                rates[name] = sum(one["tokens"] for one in own) / sum(one["seconds"] for one in own)
        if len(rates) == 2:
            found[str(batch)] = {**rates, "gain": rates[LEARNT.name] / rates[ALL.name] - 1.0}
    return found


def main(argv: Sequence[str]) -> int:
    """Run; returns 0 if no text differs and a table was learned, else 1; 2 without a GPU."""
    given = parser().parse_args(argv)
    if given.host == "cpu":
        print("DSPARK's worker needs a GPU: expected --host gpu", file=sys.stderr)
        return 2
    run = Run(given, argv)
    with run.report.noting("ended early"):
        run.all()
    run.keep()
    found = run.report.content
    print(found["summary"])
    different = sum(one[texts.DIFFERENT] for one in found["texts"])
    learnt = [one["dspark"] for one in found["passes"] if one["server"] == LEARNT.name and one["dspark"]]
    return int(bool(found["notes"]) or bool(different) or not any(one["table"] for one in learnt))


def parser() -> argparse.ArgumentParser:
    made = command_parser("dspark", __doc__)
    start.add_options(made, 560.0)
    made.add_argument("--target", choices=sorted(shapes.TARGETS), default="qwen3-8b")
    made.add_argument("--attention", default="fa3", help="attention backend of target and draft (default fa3)")
    made.add_argument("--learn", type=float, default=40.0, metavar="SECONDS", help="time of load at each batch size")
    made.add_argument("--each", type=float, default=8.0, metavar="SECONDS", help="time per turn at each batch size")
    made.add_argument("--turns", type=int, default=2, help="turns against SGLang's own DSPARK; 0 for none")
    made.add_argument("--again", action="store_true", help="start again from the saved table")
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
