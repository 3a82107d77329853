"""The launch of each server of the engine tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.architectures import shapes
from benchmarks.harness.shapes import TINY_MOE_ARGUMENTS, TINY_MOE_PAIR
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.serve_cpu import PLUGIN
from tests.engine import assistant
from tests.engine import planted as faults
from tests.engine.fault import failing_policy, lying_clock, write_plugin
from tests.engine.workload import wait_until
from tests.forked_servers import ForkedServer
from train import cut

CHUNK = 256
"""Longest prefill, in tokens: a prompt of a page takes several."""

LOG_INTERVAL = 8
"""Decode rounds between two reports of the scheduler."""

TIERS = (0, 1, 3, 7)
WIDTHS = (0, 2, 5, 11)
"""Draft tokens of NGRAM's trees."""
BLOCK_DEPTHS = (0, 1, 3, 7, 15)
"""Draft counts of DFLASH's blocks if the configuration lists none; the last is the draft's trained block."""
LAUNCH_STEPS = 3
LAYERS = 3
"""Layers of multi-layer EAGLE, one draft each."""
KEY, ADMIN_KEY = "user", "administrator"
FAULT_AFTER = 30
"""Rounds that the faulty server's policy sees before it raises, in the next round at the deeper depth."""

JUMPY_SLOT: dict[str, Any] = {"candidate_steps": [3, 7], "ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
"""A policy that reacts to every round, so that a few rounds show many switches."""

_COMMON = ("--chunked-prefill-size", str(CHUNK), "--served-model-name", "tiny")
# SGLang's own checks of its KV accounts, after every loop of the scheduler. They sort the free slots three times: with
# the CPU engine's pool of 65536 slots they take as long as a round. Four requests of 4900 tokens must decode together.
_FEW_SLOTS = ("--max-total-tokens", "24576")
CHECKED = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
# Without the plugin, the scheduler would end at its first verify.
_PLAN_STREAM = {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}
_NO_GRAPHS = ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")


def rank_rounds(server: CpuServer, rank: int) -> list[str]:
    """Return "batch size, depth" of every round that one rank of a server of two has started."""
    return server.log_path.with_name(f"{server.log_path.stem}{_OF_RANK}{rank}").read_text().splitlines()


_OF_RANK = "-depths-of-rank-"


def require_alike(server: CpuServer) -> list[str]:
    """Fail unless both ranks started the same rounds, as many as rank 0 has by now; return those."""
    first = rank_rounds(server, 0)
    wait_until(lambda: len(rank_rounds(server, 1)) >= len(first), "rank 1 has started as many rounds")
    assert rank_rounds(server, 1)[: len(first)] == first
    return first


def plain(folder: Path) -> CpuServer:
    """No speculation, no overlap, none of the package's flags: stock SGLang, in which sampling parameters are exact."""
    return server(folder, "plain", "--disable-overlap-schedule", "--enable-custom-logit-processor")


def static(folder: Path) -> CpuServer:
    """EAGLE-3 at a fixed depth, without the package's flags."""
    steps = ("--speculative-num-steps", "2", "--speculative-num-draft-tokens", "3")
    return server(folder, "static", *speculation(*steps), "--enable-metrics")


def ema(folder: Path) -> CpuServer:
    """The EMA policy on the plan stream, requested like a user does (`sglang serve`, only the configuration file)."""
    slots = {"1": {"candidate_steps": list(TIERS)}, "4": {"candidate_steps": [1, 3]}}
    made = server(
        folder,
        "ema",
        *speculation(*adapting(folder, "ema", {"policy": "ema", **slots})),
        *("--enable-metrics", "--decode-log-interval", str(LOG_INTERVAL), "--page-size", "4"),
        "--enable-custom-logit-processor",
        **CHECKED,
        **_PLAN_STREAM,
    )
    module = made.command.index("sglang_adaptive.lab.cpu_engine.start")
    first = made.command.index(_NO_GRAPHS[0])
    assert tuple(made.command[first : first + 4]) == _NO_GRAPHS
    serve = [str(Path(sys.executable).parent / "sglang"), "serve"]
    made.command = [*serve, *made.command[module + 1 : first], *made.command[first + 4 :]]
    return made


def stock(folder: Path) -> CpuServer:
    """SGLang's own adaptive speculation, with only the CPU engine of the package."""
    return server(folder, "stock", *_jumpy(folder, "stock"), "--speculative-adaptive", SGLANG_PLUGINS=PLUGIN)


def faulty(folder: Path) -> CpuServer:
    """The same with the package, and a policy that raises after some rounds."""
    plugin = failing_policy(folder / "plugins", after_rounds=FAULT_AFTER, steps=JUMPY_SLOT["candidate_steps"][-1])
    return server(folder, "faulty", *_jumpy(folder, "faulty"), "--enable-metrics", *_FEW_SLOTS, **plugin, **CHECKED)


def tree(folder: Path) -> CpuServer:
    """A setup that is asked to adapt but cannot, a tree of drafts; with an administrator's key."""
    return server(
        folder,
        "tree",
        *speculation(*adapting(folder, "tree", {"1": {"candidate_steps": list(TIERS)}}), topk=4),
        *("--speculative-num-steps", "3", "--speculative-num-draft-tokens", "8", "--admin-api-key", ADMIN_KEY),
    )


def two_ranks(folder: Path) -> CpuServer:
    """The throughput policy, the default without a configuration file, on two tensor-parallel ranks.

    The second rank's clock is wrong; each rank logs the depth of every round next to the server's log.
    """
    return _disagreeing(folder, "two_ranks", *speculation("--speculative-adaptive", "--enable-metrics"))


def lookups(folder: Path) -> CpuServer:
    """The same, with lookups."""
    return _disagreeing(folder, "lookups", *speculation(*adapting(folder, "lookups", _throughput(TIERS, lookup=True))))


def attention_dp(folder: Path) -> CpuServer:
    """The throughput policy on two ranks of attention DP, over a tiny mixture of experts with random weights.

    Clocks and logs are those of the tensor-parallel ranks.
    """
    target, draft = (str(shapes.write(folder / f"moe{end}", shape)) for end, shape in TINY_MOE_PAIR)
    drafting = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft)
    adaptive = ("--speculative-eagle-topk", "1", *adapting(folder, "attention_dp", _throughput(TIERS)))
    # The last --model-path counts.
    arguments = (*drafting, *adaptive, *TINY_MOE_ARGUMENTS, "--model-path", target)
    return _disagreeing(folder, "attention_dp", *arguments, "--dp-size", "2", "--enable-dp-attention")


def throughput(folder: Path, profiles: Path) -> CpuServer:
    """The throughput policy on one rank, warmed up, with its cost profiles in *profiles*; it can be restarted."""
    config = _throughput((0, 2, 5), profile_dir=str(profiles)) | {"warm_up": True}
    few = ("--max-running-requests", "4")
    return server(folder, "throughput", *speculation(*adapting(folder, "throughput", config)), *few)


def replicas(folder: Path) -> CpuServer:
    """Two data-parallel replicas, each with its own throughput policy."""
    arguments = speculation(*adapting(folder, "replicas", _throughput(TIERS)))
    # Otherwise SGLang looks for one memory node per replica.
    return server(folder, "replicas", *arguments, "--dp-size", "2", SGLANG_CPU_OMP_THREADS_BIND="0|1")


def standalone(folder: Path) -> CpuServer:
    """A STANDALONE draft, the target's first two layers, that sees the first 2 and the latest 12 tokens of a request.

    `worker_steps` has one without SGLang's window.
    """
    draft = cut.write(folder / "cut", 2, Path(models.target_path()))
    drafting = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(draft))
    window = ("--speculative-draft-window-size", "12", "--speculative-draft-sink-size", "2")
    adaptive = adapting(folder, "standalone", _throughput(TIERS))
    return server(folder, "standalone", *drafting, *window, *adaptive, *_FEW_SLOTS, **CHECKED)


def frozen_kv(folder: Path) -> CpuServer:
    """A draft that reads the target's keys and values, under the throughput policy."""
    target, draft = assistant.write(folder / "frozen")
    drafting = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", draft)
    # On a CPU SGLang turns overlap off only for EAGLE; the last --model-path counts.
    more = ("--disable-overlap-schedule", "--model-path", target, *_FEW_SLOTS)
    return server(folder, "frozen_kv", *drafting, *adapting(folder, "frozen_kv", _throughput(TIERS)), *more, **CHECKED)


def ngram(folder: Path) -> CpuServer:
    """NGRAM, which drafts earlier text without a model, under the throughput policy."""
    drafting = ("--speculative-algorithm", "NGRAM", *adapting(folder, "ngram", _throughput(WIDTHS)))
    return server(folder, "ngram", *drafting, *_FEW_SLOTS, **CHECKED)


def layers(folder: Path) -> CpuServer:
    """Multi-layer EAGLE, three times the same layer, at the default depths; one key for requests, one for changes."""
    adaptive = adapting(folder, "layers", {"policy": "throughput", "warm_up": False})
    many = ("--enable-multi-layer-eagle", "--speculative-num-steps", str(LAYERS), *_FEW_SLOTS)
    keys = ("--api-key", KEY, "--admin-api-key", ADMIN_KEY)
    made = server(folder, "layers", *speculation(*adaptive), *many, *keys, **CHECKED)
    made.api_key, made.admin_api_key = KEY, ADMIN_KEY
    return made


def blocks(folder: Path) -> CpuServer:
    """Whole blocks of drafts from one pass with a window of recent tokens, at the default widths."""
    drafting = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", models.block_draft_path())
    adaptive = adapting(folder, "blocks", {"policy": "throughput", "warm_up": False})
    window = ("--speculative-draft-window-size", "64", *_FEW_SLOTS)
    return server(folder, "blocks", *drafting, *adaptive, *window, **CHECKED)


def workers(folder: Path) -> CpuServer:
    """The EMA policy with two HTTP workers, warmed up; an administrator's key protects changes."""
    adaptive = adapting(folder, "workers", {"1": {"candidate_steps": list(TIERS)}, "warm_up": True})
    many = ("--tokenizer-worker-num", "2", "--max-running-requests", "4", "--admin-api-key", ADMIN_KEY)
    # The supervisor kills a worker that does not answer, for example during imports on a busy machine or stopped by a
    # test.
    patient = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}
    return server(folder, "workers", *speculation(*adaptive), *many, **patient)


_MADE = (plain, ema, static, two_ranks, lookups, stock, faulty, tree, replicas, standalone, frozen_kv, ngram, layers)
SERVERS: dict[str, Callable[[Path], CpuServer]] = {
    make.__name__: make for make in (*_MADE, blocks, attention_dp, workers)
}
"""In the order of their tests; the fixture of each name gives the running server.

No test of a later server uses ema, the slowest to start, so ema starts once.
"""


def with_faults(folder: Path, config: dict[str, Any], *more: str) -> tuple[CpuServer, Path]:
    """Return a server with the plugin `planted`, and the file that names a fault for it."""
    order, plugin = folder / "order", write_plugin(folder / "plugin", "tests.engine.planted:register")
    arguments = (*speculation(*adapting(folder, "planted", config)), *more)
    return server(folder, "planted", *arguments, **plugin, **{faults.ORDER: str(order)}), order


def server(
    folder: Path, name: str, *arguments: str, kind: type[CpuServer] = ForkedServer, **variables: str
) -> CpuServer:
    """Return a server of the tiny target with these arguments and variables; it logs to *folder*/*name*.log."""
    return kind(
        ["--model-path", str(models.target_path()), *_COMMON, *arguments],
        log=folder / f"{name}.log",
        extra_environment={"XDG_CACHE_HOME": str(folder / "cache"), **variables},
        start_timeout=300.0,
    )


def _disagreeing(folder: Path, name: str, *arguments: str) -> CpuServer:
    """Two ranks, the second with a wrong clock; they log the depths of their rounds, and reads of the configuration."""
    log, file = str(folder / f"{name}{_OF_RANK}"), folder / f"{name}.json"
    return of_two_ranks(folder, name, *arguments, **lying_clock(folder / f"liar-{name}", log, file))


def of_two_ranks(folder: Path, name: str, *arguments: str, **variables: str) -> CpuServer:
    """Two tensor-parallel ranks."""
    # Otherwise SGLang looks for NCCL and one memory node per rank; the CPU has Gloo and two cores.
    without_nccl = {"SGLANG_NCCL_SO_PATH": str(folder / "no-nccl"), "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    more = ("--tp-size", "2", "--disable-custom-all-reduce")
    return server(folder, name, *arguments, *more, **variables, **without_nccl)


def speculation(*more: str, topk: int = 1) -> tuple[str, ...]:
    """Return EAGLE-3's arguments with the tiny draft, and *more*."""
    draft = ("--speculative-draft-model-path", str(models.draft_path()))
    return ("--speculative-algorithm", "EAGLE3", *draft, "--speculative-eagle-topk", str(topk), *more)


def _jumpy(folder: Path, name: str) -> tuple[str, ...]:
    more = ("--speculative-num-steps", str(LAUNCH_STEPS), "--decode-log-interval", "1")
    return speculation(*adapting(folder, name, {"1": JUMPY_SLOT}), *more)


def _throughput(depths: Sequence[int], **options: Any) -> dict[str, Any]:
    return {"throughput": {"candidate_steps": list(depths), **options}, "warm_up": False}


def adapting(folder: Path, name: str, config: Mapping[str, object]) -> tuple[str, str]:
    """Write *folder*/*name*.json and return the arguments that select it."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return "--speculative-adaptive-config", str(path)
