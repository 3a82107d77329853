"""Measure drafts looked up in the requests' own texts and in finished ones, on live servers. See benchmarks/README.md.

    python -m benchmarks.lookups edits [--shape llama8b|smollm2] [--batches 1,4] [--host cpu]
    python -m benchmarks.lookups chat [--shape smollm2|llama8b --texts F] [--batches 1,4]
    python -m benchmarks.lookups siblings [--batches 1,4]
    python -m benchmarks.lookups mixed --texts F [--shape llama8b|smollm2] [--batches 4,16]
    python -m benchmarks.lookups cost [--shape llama8b|smollm2] [--depths 0,3]
    python -m benchmarks.lookups ngram [--batches 1,4]

edits    this project's own edits, token by token (``benchmarks/traces/edits_set``): the target is forced to output the
         recorded text; drafts are right where SmolLM2's draft was (a shape with dummy weights) or are real (smollm2)
chat     SmolLM2 on Spec-Bench with its own text and drafts; a shape with dummy weights replays what SmolLM2 wrote
         there, recorded with ``benchmarks.traces.record --tokens F``
siblings SmolLM2 asked each question of Spec-Bench eight times, at temperatures from 0 to 1
mixed    recorded chat in which every fourth request is an edit
cost     medians of round times at held depths, with and without tracking the texts
ngram    SmolLM2 asked to repeat pages of documentation, with its own text and NGRAM's drafts

In turn: no speculation, each depth held, our policy, and our policy with lookups, in the own text alone and in finished
texts as well; all but the first on one server.
``ngram``: no speculation, and our policy on two servers, with prompts in NGRAM's corpus and without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import recorded_text, start
from benchmarks.harness.load import Blocks, Body, greedy, in_blocks
from benchmarks.harness.recorded_text import TEXT
from benchmarks.harness.results import REAL, Report, command_parser
from benchmarks.harness.start import Contender, Host, Policy, Server
from benchmarks.harness.turns import Race
from benchmarks.ngram_prompts import DRAFTS
from benchmarks.served import one_pass, tokenized
from benchmarks.traces import texts
from benchmarks.traces.prompts import as_chat
from sglang_adaptive.sglang_plugin.env import OFF

EDITS = Path(__file__).parent / "traces" / "edits_set" / "edits.npz"
RECORDED = "a model's shape with dummy weights; text and acceptance are recorded"
FORCED = "SmolLM2-135M-Instruct and its EAGLE-3 draft; the target's text is recorded, drafts are the models' own"
LOOKUPS, OWN_TEXT, PROMPTS, WRITTEN = "lookups", "own text", "prompts", "written"
"""The policy with lookups, and in the own text alone; with NGRAM, its corpus of prompts and texts, and its corpus of
only generated text."""
MEMORY = 64
"""MB for finished texts."""
SAMPLES = 8
"""Answers to one question, at temperatures from 0 to 1."""
REPEAT = "Repeat the text above, word for word."
PAGE = 600
"""Tokens of a page to repeat, including the question."""
DEPTHS = (1, 2, 3, 5, 7)


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, or 1 if something failed."""
    given = parser().parse_args(argv)
    on_cpu = given.host == "cpu"  # the tiny pair does not know the recorded tokens
    given.shape = given.shape or ("smollm2" if on_cpu or given.what in ("chat", "siblings", "ngram") else "llama8b")
    end = start.begin(given)
    own = given.shape == "smollm2"
    if on_cpu and not own:
        parser().error(f"--host cpu: got --shape {given.shape}, expected smollm2")
    if given.what in ("siblings", "ngram") and not own:
        parser().error(f"{given.what}: got --shape {given.shape}, expected smollm2, which writes its own text")
    given.questions = own and given.what not in ("edits", "mixed")
    if (given.what == "mixed" or (given.what == "chat" and not own)) and given.texts == EDITS:
        parser().error(f"{given.what} of {given.shape}: expected --texts, recorded chat")
    if given.what == "mixed":
        given.texts = _mixed(given.texts, given.work / "mixed.npz")
    about = REAL if given.questions else FORCED if own else RECORDED
    report = Report(given.results / f"{given.what}-{given.shape}.json", "lookups", argv, acceptance=about)
    with report.noting(f"{given.what} ended early"):
        by_name = {server.name: server for server in _started(given, end, own)}
        {"cost": _cost, "ngram": _ngram}.get(given.what, _race)(given, by_name, report, end)
    return int(bool(report.content["notes"]))


def _started(given: argparse.Namespace, end: float, own: bool) -> list[Server]:
    folder, config = given.work / f"{given.what}-{given.shape}", {"policy": "throughput"}
    ours = [Policy("ours", config={**config, "throughput": {"lookup": True, "lookup_memory_mb": MEMORY}}, ours=True)]
    host = _host(given)
    if given.what == "ngram":
        host = replace(host, speculation=("--speculative-algorithm", "NGRAM"))
        config["throughput"] = {"candidate_steps": [0, *DRAFTS]}
        ours = [
            Policy(WRITTEN, config=config, ours=True, variables={OFF: "ngram-prompts"}),
            Policy(PROMPTS, config=config, ours=True),
        ]

    def make(policy: Policy) -> Server:
        if given.questions or not policy.speculate:
            return start.policy_server(policy, host, folder, simulate=False)
        replayed = recorded_text.environment(given.texts.resolve(), folder / "text", own)
        return start.policy_server(policy, host, folder, simulate=False, variables=replayed)

    wanted = [Policy("none", speculate=False), *ours]
    found = start.start_all(wanted, make, end)
    if {server.name for server in found} != {policy.name for policy in wanted}:
        raise RuntimeError("not all servers started")
    return found


def _host(given: argparse.Namespace) -> Host:
    most, extra = max(given.batches), ("--sleep-on-idle", *given.server_arguments)
    if given.shape == "smollm2":
        return start.smollm2(given.models, most, given.host == "cpu", extra, prefix_cache=True)
    return start.gpu(given.models, most, given.shape, extra=extra, prefix_cache=True)


def _config(given: argparse.Namespace, ours: Server, **options: Any) -> dict[str, Any]:
    """Return our configuration with *options*."""
    kept = {"profile_dir": str(given.work / "learnt")}
    return {**(ours.policy.config or {}), "throughput": {**kept, **options}}


def _cost(given: argparse.Namespace, servers: dict[str, Server], report: Report, end: float) -> None:
    ours = servers["ours"]
    configs = {on: _config(given, ours, lookup=on) for on in (False, True)}
    make_of = _chat(given) if given.questions else _edits(given)
    cells = report.content.setdefault("cells", [])
    for size in given.batches:
        for steps in given.depths:
            found: dict[bool, list[float]] = {False: [], True: []}
            for number in range(given.turns):
                for on in (False, True) if number % 2 else (True, False):
                    start.in_time(end - 20)
                    contender = Contender(ours, steps, config=configs[on])
                    before = ours.process.read()
                    one_pass(contender, given.requests * size, size, make_of(number, size))
                    found[on].append(1e6 * median(ours.process.round_seconds(before)))
            ratios = [with_them / without for without, with_them in zip(found[False], found[True], strict=True)]
            cells.append({"batch": size, "steps": steps, "not_followed_us": found[False], "followed_us": found[True]})
            report.say(
                f"batch {size}, {steps} steps: {median(found[False]):.0f} us per round, tracked "
                f"{median(found[True]):.0f}, median ratio {median(ratios):.4f}"
            )
            report.write()


def _race(given: argparse.Namespace, servers: dict[str, Server], report: Report, end: float) -> None:
    ours = servers["ours"]
    contenders = [
        Contender(servers["none"]),
        *(Contender(ours, steps) for steps in given.depths),
        Contender(ours, None, "throughput", config=_config(given, ours, lookup=False)),
        Contender(ours, None, OWN_TEXT, config=_config(given, ours, lookup=True, lookup_memory_mb=0)),
        Contender(ours, None, LOOKUPS, config=_config(given, ours, lookup=True, lookup_memory_mb=MEMORY)),
    ]
    make_of = (_siblings if given.what == "siblings" else _chat)(given) if given.questions else _edits(given)
    _in_turn(given, contenders, make_of, LOOKUPS, report, end)
    state = next(iter(ours.states()), {})
    report.add(learnt={"lookup_rounds": state.get("lookup_rounds"), "switches": state.get("switches")})


def _ngram(given: argparse.Namespace, servers: dict[str, Server], report: Report, end: float) -> None:
    from transformers import AutoTokenizer

    pages = documents(AutoTokenizer.from_pretrained(str(start.smollm2_folders(given.models)[0])), 32)
    contenders = [Contender(server) for server in servers.values()]
    _in_turn(given, contenders, _asked(given, pages), PROMPTS, report, end)


def documents(tokenizer: Any, count: int) -> list[list[int]]:
    """Return *count* pages of Python's language reference to repeat, the same for one version of Python."""
    from pydoc_data.topics import topics

    names = sorted(topics, key=lambda name: (-len(topics[name]), name))
    found = []
    for number in range(count):
        page = tokenizer("\n\n".join(topics[name] for name in names[number::count]))["input_ids"][: PAGE - 40]
        found.append(as_chat(tokenizer, f"{tokenizer.decode(page)}\n\n{REPEAT}"))
    return found


def _in_turn(
    given: argparse.Namespace,
    contenders: Sequence[Contender],
    make_of: Blocks,
    ours: str,
    report: Report,
    end: float,
) -> None:
    def serve(contender: Contender, size: int, number: int) -> dict[str, Any]:
        return one_pass(contender, given.requests * size, size, make_of(number, size))

    report.add(what=given.what, plan={"requests_of_a_pass": given.requests, "tokens": given.tokens})
    race = Race(
        lambda size, number: contenders, given.batches, serve, report, end=end - 10, error=given.error, ours=ours
    )
    report.content["batches"] = race.turns
    race.run()
    report.add(servers={one.server.name: one.server.described() for one in contenders})


def _edits(given: argparse.Namespace) -> Blocks:
    found = texts.load(given.texts)
    recorded = [found.of(request) for request in range(len(found.prompt))]

    def body(text: int, place: int) -> Body:
        prompt, output, _ = recorded[text]
        sampling = greedy(min(len(output), given.tokens), custom_params={TEXT: text})
        return {"input_ids": prompt, "sampling_params": sampling}

    return in_blocks(len(recorded), lambda size: given.requests * size, body)


def _mixed(chat: Path, path: Path) -> Path:
    """Write the requests of *chat* with an edit after every three to *path*, and return it."""
    asked, edits = texts.load(chat), texts.load(EDITS)
    path.parent.mkdir(parents=True, exist_ok=True)
    every = (
        [*(asked.of(at) for at in range(begin, min(begin + 3, len(asked.prompt)))), edits.of(turn % len(edits.prompt))]
        for turn, begin in enumerate(range(0, len(asked.prompt), 3))
    )
    texts.save(path, (request for four in every for request in four))
    return path


def _chat(given: argparse.Namespace) -> Blocks:
    return _asked(given, tokenized(start.smollm2_folders(given.models)[0]))


def _siblings(given: argparse.Namespace) -> Blocks:
    asked = tokenized(start.smollm2_folders(given.models)[0])

    def body(item: int, place: int) -> Body:
        question, sample = divmod(item, SAMPLES)
        sampling = greedy(given.tokens, temperature=sample / (SAMPLES - 1), ignore_eos=False)
        return {"input_ids": asked[question], "sampling_params": sampling}

    return in_blocks(SAMPLES * len(asked), lambda size: given.requests * size, body)


def _asked(given: argparse.Namespace, found: Sequence[list[int]]) -> Blocks:
    sampling = greedy(given.tokens)
    return in_blocks(
        len(found),
        lambda size: given.requests * size,
        lambda item, place: {"input_ids": found[item], "sampling_params": sampling},
    )


def parser() -> argparse.ArgumentParser:
    found = command_parser("lookups", __doc__)
    found.add_argument("what", choices=["edits", "chat", "siblings", "mixed", "cost", "ngram"])
    start.add_options(found, 300.0)
    found.add_argument("--shape", help="model pair (default: llama8b; smollm2 for chat, ngram and on a CPU)")
    found.add_argument("--batches", type=start.ints, default=[1, 4])
    found.add_argument("--depths", type=start.ints, default=list(DEPTHS))
    found.add_argument("--turns", type=int, default=8, help="turns of cost")
    found.add_argument("--requests", type=int, default=4, help="requests per pass, as a multiple of the batch size")
    found.add_argument("--tokens", type=int, default=1024, help="maximum tokens per answer")
    found.add_argument("--error", type=float, default=0.01, help="stop early at this relative standard error")
    found.add_argument("--texts", type=Path, default=EDITS, help="recorded requests")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
