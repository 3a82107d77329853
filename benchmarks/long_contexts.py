"""Measure how much sinks and a window help a draft beyond its trained length. See benchmarks/README.md.

real     SmolLM2 and its draft on documents of several lengths: tokens per round by window, and whether texts are equal
times    round times of an 8B shape by context and batch size, with dummy weights and simulated acceptance
served   tokens/s of the same shape, each window with the acceptance that `real` measured for it
prefill  tokens/s of prompts of the same shape, with and without chunks where the draft computes only keys and values

    python -m benchmarks.long_contexts real [--host cpu] [--backends fa3,flashinfer,triton] [--windows 512,1024]
    python -m benchmarks.long_contexts times [--backends fa3]
    python -m benchmarks.long_contexts served --measured real-fa3.json [--windows 0,1024]
    python -m benchmarks.long_contexts prefill [--backends fa3] [--lengths 8192,32768,130048]

The documents are pages of Python's language reference, which comes with the interpreter; the model has to summarize or
explain them. With a *window* of 0 the draft attends to everything.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import load, start, texts
from benchmarks.harness.acceptance import CUSTOM
from benchmarks.harness.results import REAL, SIMULATED, Report, command_parser, read
from benchmarks.harness.start import Contender, Host, Policy, Server
from benchmarks.harness.turns import Pass, Race, over
from benchmarks.served import context_of, one_pass
from benchmarks.traces.prompts import as_chat
from sglang_adaptive.lab.simulate.trace import expected_tokens, hazards
from sglang_adaptive.sglang_plugin import env

TRAINED = 2048
"""Tokens that SmolLM2's draft was trained on, like most published EAGLE-3 drafts."""
DEPTHS = (0, 1, 3, 7)
MEASURED = (3, 7)
ASKS = ("Summarize the text above.", "Explain the text above to a beginner.")
SWITCH_SECONDS = 0.02
TURNS = 3
SPARE = 512
"""Tokens beyond its context for which a request has room."""
CELLS = {1: (1024, 8192, 16384, 32768, 130048), 8: (32768,), 16: (1024, 8192, 16384), 64: (1024, 4096)}
"""Contexts, in tokens, by batch size: what fits on a GPU beside an 8B model."""
SERVED = {16: (1000, 16384), 1: (1000, 16384, 32768), 8: (32768,)}
"""The same for `served`; the first is shorter than what the draft was trained on."""


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, or 1 if something failed."""
    given = parser().parse_args(argv)
    if given.what == "served" and given.measured is None:
        parser().error("served: expected --measured, a JSON file of real")
    end = start.begin(given)
    about = REAL if given.what == "real" else SIMULATED
    on = given.backends if given.host == "gpu" else ["cpu"]
    name = "-".join([given.what, *on, *([f"page-{given.page}"] if given.page else [])])
    report = Report(given.results / f"{name}.json", "long_contexts", argv, acceptance=about)
    with report.noting(f"{given.what} ended early"):
        for backend in on:
            MEASUREMENTS[given.what](given, backend, report, end)
            start.stop_started()
    return int(bool(report.content["notes"]))


def policies(windows: Sequence[int]) -> dict[int, Policy]:
    """Return a server with forced depths for each window."""
    config: dict[str, Any] = {"policy": "throughput", "throughput": {"candidate_steps": list(DEPTHS)}, "warm_up": False}
    seen = {window: {"draft_window": window, "draft_trained_on": TRAINED} if window else {} for window in windows}
    return {
        window: Policy(f"window-{window}" if window else "whole", config={**config, **more}, ours=True)
        for window, more in seen.items()
    }


# -- the models' own acceptance ----------------------------------------------------------------------------------


def documents(tokenizer: Any, count: int, length: int, asks: Sequence[str] = ASKS) -> list[list[int]]:
    """Return *count* prompts of about *length* tokens, the same for one version of Python; *asks* in turn."""
    from pydoc_data.topics import topics

    names = sorted(topics, key=lambda name: (-len(topics[name]), name))
    found = []
    for number in range(count):
        page = tokenizer("\n\n".join(topics[name] for name in names[number::count]))["input_ids"][: length - 40]
        found.append(as_chat(tokenizer, f"{tokenizer.decode(page)}\n\n{asks[number % len(asks)]}"))
    return found


def real(given: argparse.Namespace, backend: str, report: Report, end: float) -> None:
    """Ask every server the same, at each length and depth; compare the answers with those without speculation."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(start.smollm2_folders(given.models)[0])
    on_cpu = given.host == "cpu"
    extra = ["--sleep-on-idle", "--chunked-prefill-size", "2048", *given.server_arguments]
    extra += ["--max-total-tokens", "40000"] if on_cpu else _attention(given, backend)
    host = start.smollm2(
        given.models, given.documents, on_cpu, extra, given.dtype, prefix_cache=True, kv_tokens=120_000
    )
    folder = given.work / f"real-{backend}"
    wanted = [Policy("none", speculate=False), *policies(given.windows).values()]
    servers = start.start_all(wanted, lambda one: start.policy_server(one, host, folder, simulate=False), end)
    cells = report.content.setdefault("cells", [])
    by_name = {server.name: server for server in servers}
    reference = by_name.pop("none", None)
    for length in given.lengths:
        asked = documents(tokenizer, given.documents, length)
        expected = None if reference is None else texts.ask(reference.client, asked, given.tokens).outputs
        judge = None
        if reference is not None and expected is not None and not on_cpu:
            judge = texts.Judge(reference.client, asked)
            judge.expect(backend, expected)
            # Texts of another batch size have gaps too: those caused by rounding only.
            judge.expect("alone", [texts.ask(reference.client, [one], given.tokens).outputs[0] for one in asked])
            report.add(**{f"reference {backend} {length}": judge.about()})
        for name, server in by_name.items():
            for steps in (*MEASURED, None):
                start.in_time(end - 15)
                found, outputs = _cell(server, asked, given.tokens, steps)
                if expected is not None:
                    found["equal"] = sum(one == own for one, own in zip(expected, outputs, strict=True))
                if judge is not None:
                    found["judged"] = judge.judge(backend, outputs)
                cells.append({"backend": backend, "length": length, "seen": name, **found})
                report.say(_words(cells[-1]))
                report.write()
    report.add(**{f"servers {backend}": {server.name: server.described() for server in servers}})


def _cell(
    server: Server, asked: list[list[int]], tokens: int, steps: int | None
) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the result of *asked* at *steps*, None for a constantly changing depth, and the texts."""
    server.process.full_from = len(asked)
    before = server.process.read()
    if steps is not None:
        server.force(steps)
    with nullcontext() if steps is not None else texts.switching(server.client, DEPTHS, SWITCH_SECONDS):
        answers = texts.ask(server.client, asked, tokens)
    seconds = server.process.round_seconds(before)
    return {
        "steps": "switching" if steps is None else steps,
        "accept_length": (sum(map(len, answers.outputs)) - len(asked)) / max(1, answers.rounds),
        "rounds": answers.rounds,
        "round_ms": median(seconds) * 1e3 if seconds else None,
        "texts": len(asked),
        "equal": None,
    }, answers.outputs


def _words(cell: dict[str, Any]) -> str:
    milliseconds = "" if cell["round_ms"] is None else f", {cell['round_ms']:.2f} ms per round"
    judged = cell.get("judged", {})
    verdict = f"; {judged['tie']} ties, {judged['different']} different" if judged else ""
    return (
        f"{cell['backend']} {cell['length']:5d} tokens, {cell['seen']:12s} steps {cell['steps']!s:9s} "
        f"{cell['accept_length']:.3f} tokens per round{milliseconds}; {cell['equal']} of {cell['texts']} equal{verdict}"
    )


# -- tokens/s ---------------------------------------------------------------------------------------------------------


def served(given: argparse.Namespace, backend: str, report: Report, end: float) -> None:
    """Serve every cell at held depths and by policy, one server after another: two would not fit beside their KV.

    A request's acceptance is simulated. It yields the tokens per round that `real` measured for the server's window at
    the shortest length, or, for a context beyond the trained length, at the longest.
    """
    wanted, trained = (SERVED, TRAINED) if given.host == "gpu" else ({1: (100, 600), 2: (600,)}, 500)
    host, folder = _shape(given, backend, max(wanted), _room(wanted), 8192), given.work / f"served-{backend}"
    report.content["measured"] = given.measured.name
    cells, every = report.content.setdefault("cells", []), list(policies(given.windows).values())
    for number, policy in enumerate(every):
        now = time.monotonic()
        until = now + (end - now) / (len(every) - number)
        [server] = start.start_all([policy], lambda one: start.policy_server(one, host, folder), until)
        for batch, contexts in wanted.items():
            for context in contexts:
                process = acceptance_of(given.measured, policy.name, context > trained)
                cell = {"backend": backend, "seen": policy.name, "batch": batch, "context": context}
                cells.append({**cell, "acceptance": process})
                _serve(server, cells[-1], given.tokens, report, until - 5)
                server.client.flush_cache()
        report.add(**{f"server {backend} {policy.name}": server.described()})
        server.stop()


def _serve(server: Server, cell: dict[str, Any], tokens: int, report: Report, end: float) -> None:
    """Run the turns of a cell, into it: depths held, and the policy."""
    batch, sampling = cell["batch"], load.greedy(tokens, custom_params={CUSTOM: cell["acceptance"]})
    contenders = [*(Contender(server, steps) for steps in MEASURED), Contender(server)]

    def body(request: int, place: int) -> load.Body:
        return {"input_ids": context_of(place, cell["context"]), "sampling_params": sampling}

    def serve(one: Contender, case: int, number: int) -> Pass:
        return one_pass(one, max(6, 2 * batch), batch, body)

    load.run_list(server.client.url, batch, batch, body)  # its prompts are cached from here on
    race = Race(lambda case, number: contenders, [cell["context"]], serve, report, end=end, least=TURNS, most=TURNS)
    cell["turns"] = race.turns[cell["context"]]
    race.run()


def acceptance_of(measured: Path, seen: str, beyond: bool) -> list[float]:
    """Return p and decay with which 3 and 7 steps yield the tokens per round that *measured* has for *seen*.

    *beyond* is for the longest length in the file, otherwise the shortest.
    """
    rows = [row for row in read(measured)["cells"] if row["seen"] == seen and row["steps"] in MEASURED]
    length = (max if beyond else min)(row["length"] for row in rows)
    by_steps = {row["steps"]: row["accept_length"] for row in rows if row["length"] == length}
    p, decay = np.meshgrid(np.arange(0.3, 0.98, 0.002), np.arange(0.7, 1.2, 0.002), indexing="ij")
    found = expected_tokens(hazards(p, decay, max(MEASURED)))[..., MEASURED]
    off = np.abs(found - [by_steps[steps] for steps in MEASURED]).max(axis=-1)
    best = np.unravel_index(int(off.argmin()), off.shape)
    return [round(float(p[best]), 3), round(float(decay[best]), 3)]


# -- times ---------------------------------------------------------------------------------------------------------


def times(given: argparse.Namespace, backend: str, report: Report, end: float) -> None:
    """Measure rounds of forced depths by context and batch size, one server after another."""
    cells = report.content.setdefault("cells", [])
    wanted = CELLS if given.host == "gpu" else {1: (512, 1024), 2: (512,)}
    wanted = {batch: contexts for batch, contexts in wanted.items() if batch <= given.batch}
    host, folder = _shape(given, backend, max(wanted), _room(wanted), 8192), given.work / f"times-{backend}"
    for policy in policies(given.windows).values():
        [server] = start.start_all([policy], lambda one: start.policy_server(one, host, folder), end)
        for batch, contexts in wanted.items():
            for context in contexts:
                for steps in (1, *MEASURED):
                    start.in_time(end - 15)
                    found = {"backend": backend, "seen": policy.name, "batch": batch, "context": context}
                    cells.append({**found, "steps": steps, **_timed(server, batch, context, steps)})
                    report.say(" ".join(f"{key} {value}" for key, value in cells[-1].items()))
                    report.write()
                server.client.flush_cache()
        report.add(**{f"server {backend} {policy.name}": server.described()})
        server.stop()


def _room(cells: Mapping[int, Sequence[int]]) -> int:
    """Return the KV tokens that the cells need."""
    return max(batch * (max(contexts) + SPARE) for batch, contexts in cells.items())


def _shape(given: argparse.Namespace, backend: str, batch: int, kv_tokens: int, chunk: int) -> Host:
    """Return the host for servers of the 8B shape or of the tiny pair."""
    extra = ["--chunked-prefill-size", str(chunk), *given.server_arguments]
    if given.host == "cpu":
        return start.cpu(batch, prefix_cache=True, extra=extra)
    extra += _attention(given, backend)
    return start.gpu(given.models, batch, prefix_cache=True, kv_tokens=kv_tokens, extra=extra)


def _attention(given: argparse.Namespace, backend: str) -> list[str]:
    return ["--attention-backend", backend, *(("--page-size", str(given.page)) if given.page else ())]


def prefill(given: argparse.Namespace, backend: str, report: Report, end: float) -> None:
    """Let two servers read the same prompts in turn; no prompt token is cached."""
    chunk = 8192 if given.host == "gpu" else 256
    host = _shape(given, backend, 1, max(given.lengths) + 1024, chunk)
    short = replace(policies([0])[0], name="short")
    whole = replace(short, name="whole", variables={env.SHORT_PREFILL.name: "0"})
    folder = given.work / f"prefill-{backend}"
    servers = start.start_all([whole, short], lambda one: start.policy_server(one, host, folder), end)

    def read(server: Server, length: int, number: int) -> Pass:
        server.client.flush_cache()
        begun = time.perf_counter()
        server.client.generate([load.prompt(number, length)], 1, ignore_eos=True)
        seconds = time.perf_counter() - begun
        return {"rate": length / seconds, "seconds": seconds}

    for server in servers:  # load kernels
        read(server, max(given.lengths), -1)
    race = Race(
        lambda length, number: servers, given.lengths, read, report, end=end - 15, error=given.error, ours="short"
    )
    report.content[f"prompts {backend}"] = {str(length): turns for length, turns in race.turns.items()}
    race.run()
    for length, turns in race.turns.items():
        report.say(f"{length} tokens: short over whole {over(turns, 'whole', 'short')}")
    report.add(**{f"servers {backend}": {server.name: server.described() for server in servers}})


def _timed(server: Server, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Return the median round of *batch* requests of *context* tokens; a second call finds their prompts cached."""
    server.force(steps)
    server.process.full_from = batch
    before = server.process.read()
    asked = [load.prompt(number, context - 300) for number in range(batch)]
    server.client.generate(asked, 40 * (steps + 1) // 2 + 40, ignore_eos=True)
    found = server.process.round_seconds(before)[5:]
    return {"round_ms": round(median(found) * 1e3, 3) if found else None, "rounds": len(found)}


MEASUREMENTS = {"real": real, "times": times, "served": served, "prefill": prefill}


def parser() -> argparse.ArgumentParser:
    found = command_parser("long_contexts", __doc__)
    found.add_argument("what", choices=tuple(MEASUREMENTS))
    start.add_options(found, 560.0)
    add = found.add_argument
    add("--backends", type=start.names, default=["fa3"], help="SGLang's attention backends (default: fa3)")
    add(
        "--windows",
        type=start.ints,
        default=[0, 512, 1024],
        help="in tokens; 0 for none (default: 0,512,1024)",
    )
    add("--lengths", type=start.ints, default=[1000, 2000, 3000, 4000, 6000], help="tokens per document")
    add("--documents", type=int, default=8, help="documents per length, sent as one batch")
    add("--tokens", type=int, default=160, help="maximum tokens per answer")
    add("--batch", type=int, default=64, help="largest batch size to time")
    add("--error", type=float, default=0.002, help="stop early at this relative standard error (prefill)")
    add("--measured", type=Path, help="JSON of `real`, from which `served` takes tokens per round")
    add("--page", type=int, help="KV cache page size in tokens")
    add("--dtype", default="bfloat16", help="dtype of SmolLM2 on a GPU")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
