"""Check that adaptive speculation boots, runs every depth and keeps the text on every architecture that people launch.

Each family of the published launch lines is a small shape with its own draft kind and attention backend. It runs on two
servers: one with the throughput policy and one without speculation. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import shapes, start, texts, weights
from benchmarks.harness.results import command_parser, origin, write
from benchmarks.harness.shapes import Shape
from benchmarks.harness.start import NotStarted, OutOfTime, Policy, Server
from benchmarks.harness.texts import BATCHES, DIFFERENT, EQUAL, TIE
from sglang_adaptive.client import RequestError
from sglang_adaptive.sglang_plugin.workers.choice import WITHOUT_LOOKUPS

Record = dict[str, Any]
LARGEST_BATCH = max(BATCHES)
NEW_TOKENS = 48
SWITCH_SECONDS = 0.03
"""Seconds between two forced depths while requests run; a round takes 2 to 10 ms."""

APART = (0.005, 0.01, 0.02)
"""Seconds between two requests that are sent one by one: batches of the reference that grow, shrink and change."""

STOPPING = 10.0
"""Seconds reserved at the end of the budget to stop servers and write."""

LEAST_SECONDS = 30.0
"""With less time, a family is not started."""

_GPU = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache", "--dtype", "bfloat16"),
    # The pool is capped by tokens: a share of memory would depend on which server allocates first.
    *("--mem-fraction-static", "0.85", "--max-total-tokens", "24576", "--context-length", "1024"),
    *("--max-running-requests", str(LARGEST_BATCH), "--cuda-graph-bs-decode", *map(str, BATCHES)),
    *("--cuda-graph-backend-prefill", "disabled", "--sampling-backend", "pytorch", "--watchdog-timeout", "300"),
    "--disable-flashinfer-autotune",  # it tunes speed, which is not judged here, for up to a minute
)
_CPU = ("--disable-radix-cache", "--max-running-requests", str(LARGEST_BATCH))


# -- families, the most used ones first -----------------------------------------------------------------------------


def _chain(steps: int) -> tuple[str, ...]:
    return (
        *("--speculative-eagle-topk", "1", "--speculative-num-steps", str(steps)),
        *("--speculative-num-draft-tokens", str(steps + 1)),
    )


CHAIN = _chain(3)


@dataclass(frozen=True)
class Family:
    """One architecture with the draft that its published lines name."""

    name: str
    models: str
    """Published models of this architecture."""
    algorithm: str
    draft_kind: str
    target: Shape
    draft: Shape | None = None
    """None if the target's folder holds the draft layers, or no draft is needed."""
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    """What this family compiles or needs besides Triton and prebuilt kernels."""
    launch: tuple[str, ...] = CHAIN
    """Arguments of an adaptive server for its drafts."""
    depths: tuple[int, ...] = (0, 1, 2, 3, 5)
    warm_up: bool | None = None
    """As in the adaptive configuration: None warms up only on a GPU."""
    lookups: bool = True
    """Whether rounds look drafts up where the algorithm can."""
    static: tuple[str, ...] = ()
    """Arguments of SGLang's own server with static speculation at the deepest steps; without them there is none."""


FA3, TRITON, FLASHINFER = (("--attention-backend", name) for name in ("fa3", "triton", "flashinfer"))
WINDOW = (*CHAIN, "--speculative-draft-window-size", "16", "--speculative-draft-sink-size", "4")
HYBRID = (*FA3, "--max-mamba-cache-size", "80")
NEMOTRON = (*HYBRID, "--moe-runner-backend", "triton")
"""Without it SGLang uses FlashInfer's CUTLASS experts, which nvcc compiles for minutes at the first start."""


def _eagle3(name: str, models: str, target: Shape, arguments: tuple[str, ...] = FA3, **more: Any) -> Family:
    return Family(name, models, "EAGLE3", "EAGLE-3", target, shapes.eagle3_of(target), arguments, **more)


def _own(
    name: str, models: str, kind: str, target: Shape, arguments: tuple[str, ...] = FA3, algorithm: str = "EAGLE",
    **more: Any,
) -> Family:  # fmt: skip
    return Family(name, models, algorithm, kind, target, arguments=arguments, **more)


_NEMOTRON_H = _own("nemotron-h", "Nemotron-3 Super, Ultra", "MTP", shapes.NEMOTRON_H, NEMOTRON, "NEXTN")
_DENSE = "Qwen2.5-7B-Instruct and other dense models"
FAMILIES: tuple[Family, ...] = (
    _own("deepseek-v3", "DeepSeek-V3, R1, V3.1", "NextN", shapes.DEEPSEEK_V3),
    _own("qwen3-next", "Qwen3-Next-80B-A3B", "MTP", shapes.QWEN3_NEXT, HYBRID, "NEXTN"),
    _own("glm-4-moe", "GLM-4.5, 4.6, 4.7", "NextN", shapes.GLM_4_MOE),
    _eagle3("gpt-oss", "gpt-oss-20b, 120b", shapes.GPT_OSS, static=_chain(5)),
    _NEMOTRON_H,
    replace(
        _NEMOTRON_H, name="nemotron-h-uncured", models="Nemotron-3, without this package's repair",
        variables={weights.MAMBA2: "uncured"},
    ),
    _eagle3("llama", "Llama 3.x", shapes.LLAMA),
    _own("qwen3.6-moe", "Qwen3.6-35B-A3B, Qwen3.5-397B-A17B", "MTP", shapes.QWEN36_MOE, HYBRID, "NEXTN"),
    _eagle3("qwen3-moe", "Qwen3-30B-A3B", shapes.QWEN3_MOE),
    _own("mimo", "MiMo-7B", "MTP", shapes.MIMO),
    _own("mimo-v2", "MiMo-V2-Flash, V2.5", "multi-layer MTP", shapes.MIMO_V2),
    _own("step-3.5", "Step-3.5-Flash", "multi-layer MTP", shapes.STEP_35),
    Family("kimi-k2", "Kimi-K2.x (text)", "EAGLE3", "EAGLE-3", shapes.KIMI_K2, shapes.KIMI_K2_EAGLE3, FA3),
    _eagle3("llama-4", "Llama-4-Scout", shapes.LLAMA_4),
    _eagle3("minimax-m2", "MiniMax-M2, M2.5", shapes.MINIMAX_M2),
    _eagle3("qwen3", "Qwen3-8B, 14B, 32B", shapes.QWEN3),
    _own("qwen3.5", "Qwen3.5-27B, Qwen3.6-27B", "MTP", shapes.QWEN35, HYBRID, "NEXTN"),
    _own(
        "deepseek-v3.2", "DeepSeek-V3.2, GLM-5.x (sparse attention)", "NextN", shapes.DEEPSEEK_V32, (),
        needs="DeepGEMM compiles the indexer's logits with nvcc",
    ),
    _own(
        "deepseek-v4", "DeepSeek-V4", "NextN", shapes.DEEPSEEK_V4, (),
        needs="nvcc compiles SGLang's kernels for compressed attention, and DeepGEMM's",
        lookups=False,  # their drafts do not fit in its rings
    ),
    Family("gemma-4", "Gemma-4", "EAGLE", "Frozen-KV MTP", shapes.GEMMA_4, shapes.GEMMA_4_ASSISTANT, TRITON),
    _eagle3("llama-triton", "Llama 3.x, Triton backend", shapes.LLAMA, TRITON),
    _eagle3(
        "llama-flashinfer", "Llama 3.x, FlashInfer backend", shapes.LLAMA, FLASHINFER,
        needs="nvcc compiles FlashInfer's kernels for minutes at the first start",
    ),
    # SGLang's window for the draft: the texts are longer than it.
    _own("deepseek-v3-window", "DeepSeek-V3, Triton, draft window", "NextN", shapes.DEEPSEEK_V3, TRITON, launch=WINDOW),
    _own("mimo-window", "MiMo-7B, FlashInfer, draft window", "MTP", shapes.MIMO, FLASHINFER, launch=WINDOW),
    # Kinds of drafting, not of models.
    Family("standalone", _DENSE, "STANDALONE", "a smaller model", shapes.LLAMA, shapes.LLAMA_CUT, FA3),
    Family(
        "ngram", _DENSE, "NGRAM", "earlier text", shapes.LLAMA, arguments=FA3, launch=(), depths=(0, 3, 7, 11, 15),
        static=("--speculative-num-draft-tokens", "16"),
    ),
    Family(
        "dflash", "Qwen3-8B and other dense models", "DFLASH", "blocks", shapes.QWEN3,
        shapes.block_draft_of(shapes.QWEN3, 2), FA3, launch=(), depths=(0, 1, 3, 7, 15),
    ),
    Family(
        "dflash2", "Qwen3.8, GLM-5.3", "DFLASH", "blocks of choices", shapes.QWEN3,
        shapes.choosing_draft_of(shapes.QWEN3, 2), FA3, launch=(), depths=(0, 1, 3, 7, 15),
    ),
)  # fmt: skip

_TINY = ("--load-format", "dummy", "--skip-tokenizer-init")
_TINY_DEPTHS = (0, 1, 2, 3)
# The engine has no sliding window, so Gemma 4's assistant drafts for a Llama here; it reads the keys and values of any
# target's last layer. For multi-layer EAGLE each layer is a copy of the EAGLE-3 draft.
REHEARSAL = (
    Family("rehearsal", "none", "EAGLE3", "EAGLE-3", shapes.TINY, shapes.TINY_EAGLE3, _TINY, depths=_TINY_DEPTHS),
    Family(
        "rehearsal-frozen-kv", "none", "EAGLE", "Frozen-KV MTP", shapes.TINY_TYPED, shapes.TINY_ASSISTANT,
        (*_TINY, "--disable-overlap-schedule"), depths=_TINY_DEPTHS,  # SGLang turns it off on a CPU only for EAGLE
    ),
    Family(
        "rehearsal-layers", "none", "EAGLE3", "multi-layer", shapes.TINY, shapes.TINY_LAYER,
        (*_TINY, "--enable-multi-layer-eagle"), depths=_TINY_DEPTHS,
    ),
    Family(
        "rehearsal-standalone", "none", "STANDALONE", "its first layers", shapes.TINY,
        dict(shapes.TINY, num_hidden_layers=3), _TINY, depths=_TINY_DEPTHS,
    ),
    Family(
        "rehearsal-ngram", "none", "NGRAM", "earlier text", shapes.TINY, arguments=_TINY, launch=(), depths=(0, 3, 7),
        static=("--speculative-num-draft-tokens", "8"),
    ),
)  # fmt: skip
"""What ``--host cpu`` runs."""


def named(families: Sequence[Family], wanted: Sequence[str]) -> tuple[Family, ...]:
    """Return the families of *wanted* names, all without names. Raises ValueError for an unknown one."""
    known = {family.name: family for family in families}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"unknown family {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(known[name] for name in wanted) or tuple(families)


# -- servers --------------------------------------------------------------------------------------------------------

ADAPTIVE, REFERENCE, STATIC = "", "-reference", "-static"
"""Kinds of servers, by suffix of their names: the throughput policy, no speculation, SGLang's static one."""


def family_server(family: Family, folder: Path, kind: str, cpu: bool, **variables: str) -> Server:
    """Return an unlaunched server of *family*; *variables*, for example of another plugin, are added last."""
    target = shapes.write(folder / "models" / family.name, family.target)
    given = ["--model-path", str(target), *(_CPU if cpu else _GPU), *family.arguments]
    if kind != REFERENCE:
        given += ["--speculative-algorithm", family.algorithm, *(family.static if kind == STATIC else family.launch)]
        if family.draft is not None:
            draft = shapes.write(folder / "models" / f"{family.name}-draft", family.draft)
            given += ["--speculative-draft-model-path", str(draft)]
    throughput = {
        "candidate_steps": list(family.depths), "profile_dir": str(folder / "learnt" / family.name),
        "lookup": family.lookups and family.algorithm not in WITHOUT_LOOKUPS,
    }  # fmt: skip
    warm_up = {} if family.warm_up is None else {"warm_up": family.warm_up}
    config = {"policy": "throughput", **warm_up, "throughput": throughput} if kind == ADAPTIVE else None
    policy = Policy(
        family.name + kind, kind != REFERENCE, config=config, ours=kind == ADAPTIVE, variables=family.variables
    )
    given += policy.files(folder, folder)
    if cpu:
        from sglang_adaptive.serve_cpu import default_arguments

        given += default_arguments(given)
    return start.server_of(
        policy, folder, partial(start.launch_command, given), cpu, weights.environment(folder / "plugin"), variables,
        timeout=100.0,
    )  # fmt: skip


# -- one family -----------------------------------------------------------------------------------------------------


class Examined:
    """One family from start to record: both servers, every depth, and the verdicts."""

    def __init__(self, family: Family, given: argparse.Namespace, about: Record, seconds: float) -> None:
        self._family, self._given = family, given
        self._begin, self._deadline = time.monotonic(), time.monotonic() + seconds
        kinds = (ADAPTIVE, REFERENCE, *((STATIC,) if family.static else ()))
        self._servers = {kind: family_server(family, given.work, kind, given.host == "cpu") for kind in kinds}
        self._deepest: dict[int, list[list[int]]] = {}
        words = self._servers[ADAPTIVE].command[1:]
        self.record: Record = {
            **about,
            "family": family.name,
            "models": family.models,
            "algorithm": family.algorithm,
            "draft": family.draft_kind,
            "arguments": list(family.arguments),
            "variables": dict(family.variables),
            "needs": family.needs,
            "server": [word.removeprefix(f"{given.work}/") for word in words],
            **{"error": None, "active": None, "depths": [], "runs": [], "static_runs": []},
        }
        text = family.target.get("text_config", family.target)
        self._prompts = texts.prompts(LARGEST_BATCH, text["vocab_size"])
        self._in_time = partial(start.in_time, self._deadline)
        self._judge = texts.Judge(self._servers[REFERENCE].client, self._prompts, self._in_time)

    def run(self) -> Record:
        """Run the family and return its record, which is written after every step; server errors are not raised."""
        try:
            for server in self._servers.values():
                server.launch()
            for server in self._servers.values():
                server.wait(self._deadline)
            self._ask_everything()
        except (NotStarted, OutOfTime) as error:
            self.record["error"] = str(error)
        except (OSError, RequestError, ValueError, KeyError, TypeError) as error:
            ended = [f"{one.name} exited: {one.last_error()}" for one in self._servers.values() if not one.is_well()]
            self.record["error"] = "; ".join(ended) or f"{type(error).__name__}: {error}"[:400]
        finally:
            self.record["start_seconds"] = self._servers[ADAPTIVE].start_seconds
            self.record["reference_start_seconds"] = self._servers[REFERENCE].start_seconds
            self._look()
            for server in self._servers.values():
                server.stop(grace=0)
            self.record["seconds"] = round(time.monotonic() - self._begin, 1)
            self._keep()
        return self.record

    def _ask_everything(self) -> None:
        """Ask the reference, then the adaptive server at every depth, switching and by policy, and the static one."""
        adaptive = self._servers[ADAPTIVE]
        self._look()
        self._keep()
        reference = self._servers[REFERENCE].client
        for apart in APART:
            self._judge.expect(f"{apart} s apart", texts.ask(reference, self._prompts, NEW_TOKENS, apart).outputs)
        for batch in BATCHES:
            self._judge.expect(batch, texts.ask(reference, self._prompts[:batch], NEW_TOKENS).outputs)
        self.record["reference"] = self._judge.about()
        if not self.record["active"]:
            self._run("launch depth", adaptive)
            return
        depths = self.record["depths"] = [tier["steps"] for tier in self.record["startup"]["tiers"]]
        for steps in sorted(depths, reverse=True):  # the deepest first, because a narrower one may read its leftovers
            adaptive.force(steps)
            self._run(f"depth {steps}", adaptive)
        self._run("switching", adaptive, depths)
        adaptive.force(None)
        self._run("policy", adaptive)
        if STATIC in self._servers:
            self._run("static", self._servers[STATIC], into="static_runs")
            for apart in APART:
                self._run(f"static, {apart} s apart", self._servers[STATIC], into="static_runs", apart=apart)

    def _run(
        self, how: str, server: Server, switch: Sequence[int] = (), into: str = "runs", apart: float = 0.0
    ) -> None:
        for batch in BATCHES:
            self._in_time()
            around = texts.switching(server.client, switch, SWITCH_SECONDS) if switch else nullcontext()
            with around:
                answers = texts.ask(server.client, self._prompts[:batch], NEW_TOKENS, apart)
            deepest = self._deepest.setdefault(batch, answers.outputs)
            self.record[into].append({
                "how": how, "batch": batch, "rounds": answers.rounds, "accepted": answers.accepted,
                "as_deepest": sum(one == other for one, other in zip(answers.outputs, deepest, strict=True)),
                **self._judge.judge(batch, answers.outputs),
            })  # fmt: skip
            self._keep()

    def _look(self) -> None:
        """Add the server's state; nothing if it does not answer."""
        adaptive = self._servers[ADAPTIVE]
        if adaptive.start_seconds is None or not adaptive.is_running():
            return
        try:
            info = adaptive.client.server_info()
            state = info["internal_states"][0]["adaptive"]
        except (OSError, RequestError, KeyError, IndexError):
            return
        self.record["attention_backend"] = info.get("attention_backend")
        kept = ("startup", "active", "reason", "switches", "rounds_by_tier", "accepted_by_tier", "degraded_reason")
        for name in (*kept, "zero_steps"):
            self.record[name] = state.get(name)

    def _keep(self) -> None:
        verdict = verdict_on(self.record)
        write(self._given.results / f"{self._family.name}.json", {**self.record, "verdict": verdict})


LOSSLESS, WRONG, REFUSED, FAILED, UNFINISHED = "lossless", "wrong tokens", "refused", "failed", "unfinished"
OPEN = "open"
"""Single tokens that the reference would not choose, in texts that are otherwise as likely as its own."""

WRONG_SHARE, A_FEW = 0.05, 5
"""A wrong state or key changes every token after it: the run then has more unlikely tokens than the reference, by
this share of its tokens and by at least this many."""


def verdict_on(record: Mapping[str, Any]) -> str:
    """Return the verdict on a family's record: LOSSLESS needs every depth, forced and switched, and no different text.

    A wrong state changes every token after it, so texts that differ only in single tokens are OPEN. If one token of the
    reference has a large gap, every text is a tie; the share of unlikely tokens reveals a wrong state even then.
    """
    runs = record.get("runs", [])
    if any(_is_wrong(run, record.get("reference", {})) for run in runs):
        return WRONG
    if any(run[DIFFERENT] for run in runs):
        return OPEN
    if record.get("error"):
        return FAILED
    if record.get("active") is False:
        return REFUSED
    taken = {run["how"] for run in runs}
    wanted = {f"depth {steps}" for steps in record.get("depths", [])} | {"switching", "policy"}
    return LOSSLESS if record.get("depths") and wanted <= taken else UNFINISHED


def _is_wrong(run: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """Compare with the reference's texts of the same batch: one of 8 requests may be four times as noisy as all."""
    share = run.get("unlikely_tokens", float(run[DIFFERENT] > 0))
    usual = reference.get("unlikely_by_batch", {}).get(str(run.get("batch")), reference.get("unlikely_tokens", 0.0))
    return bool((share - usual) * run["tokens"] > max(WRONG_SHARE * run["tokens"], A_FEW))


# -- all families ---------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Run the families; returns 0 if none had wrong tokens, else 1; 2 for an unknown family."""
    given = parser().parse_args(argv)
    if given.list:
        for family in FAMILIES:
            print(f"{family.name:20} {family.algorithm:10} {family.draft_kind:16} {family.models}")
        return 0
    try:
        families = named(REHEARSAL if given.host == "cpu" else FAMILIES, given.families)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    end = start.begin(given) - STOPPING
    given.results.mkdir(parents=True, exist_ok=True)
    families = tuple(replace(one, arguments=(*one.arguments, *given.server_arguments)) for one in families)
    source = origin("architectures", argv)
    about = {"date": source["date"][:10], "gpu": (source["gpu"] or "CPU").split(",")[0], "provenance": source}

    def one(family: Family) -> Record:
        left = min(given.each, end - time.monotonic())
        if left < LEAST_SECONDS:
            _say(f"{family.name}: not started, no time left")
            return {"family": family.name}
        _say(f"{family.name}: starting, {left:.0f} s at most")
        try:
            record = Examined(family, given, about, left).run()
        except Exception as error:  # a family's fault must not end the others
            record = {"family": family.name, "error": repr(error)}
        _say(told(record))
        return record

    with ThreadPoolExecutor(given.at_once) as pool:
        records = list(pool.map(one, families))
    print("\n".join(f"{record['family']:20} {verdict_on(record)}" for record in records))
    return int(any(verdict_on(record) == WRONG for record in records))


def told(record: Record) -> str:
    """Return a one-line summary of *record*."""
    runs = record.get("runs", [])
    counts = ", ".join(f"{sum(run[verdict] for run in runs)} {verdict}" for verdict in (EQUAL, TIE, DIFFERENT))
    accepted = sum(run["accepted"] for run in runs)
    line = f"{record['family']}: {verdict_on(record)}; {counts}; {accepted} accepted drafts; {record.get('seconds')} s"
    return f"{line}; {record['error']}" if record.get("error") else line


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def parser() -> argparse.ArgumentParser:
    made = command_parser("architectures", __doc__)
    made.add_argument("families", nargs="*", help="names from --list (default: all, most used first)")
    start.add_options(made, 420.0)
    made.add_argument("--at-once", type=int, default=6, help="families at a time, two servers each (default 6)")
    made.add_argument("--each", type=float, default=170.0, metavar="SECONDS", help="limit per family (default 170)")
    made.add_argument("--list", action="store_true", help="list the families and exit")
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
