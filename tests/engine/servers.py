"""How each server of the engine tests is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.architectures import shapes
from benchmarks.harness.shapes import TINY_MOE_ARGUMENTS, TINY_MOE_PAIR
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.serve_cpu import PLUGIN, environment
from tests.engine import assistant
from tests.engine.fault import write_fault_plugin, write_liar_plugin
from tests.forked_servers import ForkedServer
from train import cut

CHUNK = 256
"""Longest prefill, in tokens, so that a prompt of a page takes several."""

LOG_INTERVAL = 8
"""Decode rounds between two reports of the scheduler."""

TIERS = (0, 1, 3, 7)
WIDTHS = (0, 2, 5, 11)
"""Drafted tokens of NGRAM's trees."""
BLOCK_DEPTHS = (0, 1, 3, 7, 15)
"""Drafts of DFLASH's blocks where the configuration lists none; the last are as many as its draft was trained for."""
LAUNCH_STEPS = 3
LAYERS = 3
"""Of multi-layer EAGLE; one draft each."""
KEY, ADMIN_KEY = "user", "administrator"
FAULT_AFTER = 30
"""Rounds that the faulty server's policy sees before it raises, in the next one at the deeper depth."""

JUMPY_SLOT: dict[str, Any] = {"candidate_steps": [3, 7], "ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
"""A policy that follows every round at once, so that few rounds show many switches."""

_COMMON = ("--chunked-prefill-size", str(CHUNK), "--served-model-name", "tiny")
# SGLang's own checks of its KV accounts, after every loop of the scheduler. They sort the free slots three times: those
# of the CPU engine's pool, 65536, take as long as a round does. Four requests of 4900 tokens have to decode together.
_FEW_SLOTS = ("--max-total-tokens", "24576")
_CHECKED = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
# Without the plugin's answer the scheduler would end at its first verify.
_PLAN_STREAM = {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}
_NO_GRAPHS = ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")


def rank_log(server: str) -> str:
    """Return the name of the file, but for the rank's number, in which a server's ranks log the depths of rounds."""
    return f"{server}-depths-of-rank-"


def plain(folder: Path) -> CpuServer:
    """No speculation and no overlap, and none of the package's flags: stock SGLang, in which parameters are exact."""
    return _server(folder, "plain", "--disable-overlap-schedule", "--enable-custom-logit-processor")


def static(folder: Path) -> CpuServer:
    """EAGLE-3 at one depth, and none of the package's flags."""
    steps = ("--speculative-num-steps", "2", "--speculative-num-draft-tokens", "3")
    return _server(folder, "static", *_speculation(*steps), "--enable-metrics")


def ema(folder: Path) -> CpuServer:
    """The EMA policy, asked for as a user would (`sglang serve`, the configuration file alone), on the plan stream."""
    slots = {"1": {"candidate_steps": list(TIERS)}, "4": {"candidate_steps": [1, 3]}}
    config = _config(folder, "ema", {"policy": "ema", **slots})
    server = _server(
        folder,
        "ema",
        *_speculation("--speculative-adaptive-config", config),
        *("--enable-metrics", "--decode-log-interval", str(LOG_INTERVAL), "--page-size", "4"),
        "--enable-custom-logit-processor",
        **_CHECKED,
        **_PLAN_STREAM,
    )
    module = server.command.index("sglang_adaptive.lab.cpu_engine.start")
    first = server.command.index(_NO_GRAPHS[0])
    assert tuple(server.command[first : first + 4]) == _NO_GRAPHS
    serve = [str(Path(sys.executable).parent / "sglang"), "serve"]
    server.command = [*serve, *server.command[module + 1 : first], *server.command[first + 4 :]]
    return server


def stock(folder: Path) -> CpuServer:
    """SGLang's own adaptive speculation, with nothing of the package but the CPU engine."""
    return _server(folder, "stock", *_jumpy(folder, "stock"), "--speculative-adaptive", SGLANG_PLUGINS=PLUGIN)


def faulty(folder: Path) -> CpuServer:
    """The same with the package, and a policy that raises after some rounds."""
    plugins = write_fault_plugin(folder / "plugins", after_rounds=FAULT_AFTER, steps=JUMPY_SLOT["candidate_steps"][-1])
    path = os.pathsep.join([environment()["PYTHONPATH"], str(plugins)])
    arguments = (*_jumpy(folder, "faulty"), "--enable-metrics", *_FEW_SLOTS)
    return _server(folder, "faulty", *arguments, PYTHONPATH=path, **_CHECKED)


def tree(folder: Path) -> CpuServer:
    """A setup that cannot adapt, a tree of drafts, which is asked to; with an administrator's key."""
    config = _config(folder, "tree", {"1": {"candidate_steps": list(TIERS)}})
    return _server(
        folder,
        "tree",
        *_speculation("--speculative-adaptive-config", config, topk=4),
        *("--speculative-num-steps", "3", "--speculative-num-draft-tokens", "8", "--admin-api-key", ADMIN_KEY),
    )


def two_ranks(folder: Path) -> CpuServer:
    """The throughput policy, as adaptive speculation without a file gives it, on two tensor-parallel ranks.

    The second rank's clock lies; each rank logs the depth of every round beside the server's log.
    """
    adaptive = ("--speculative-adaptive", "--enable-metrics")
    return _two(folder, "two_ranks", *_speculation(*adaptive))


def lookups(folder: Path) -> CpuServer:
    """The same, looking drafts up as well."""
    options = {"candidate_steps": list(TIERS), "lookup": True}
    config = _config(folder, "lookups", {"throughput": options, "warm_up": False})
    return _two(folder, "lookups", *_speculation("--speculative-adaptive-config", config))


def attention_dp(folder: Path) -> CpuServer:
    """The throughput policy on two ranks of attention DP, over a tiny mixture of experts with random weights.

    Clocks and logs as for the tensor-parallel ranks.
    """
    target, draft = (str(shapes.write(folder / f"moe{end}", shape)) for end, shape in TINY_MOE_PAIR)
    speculation = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft)
    config = _config(folder, "attention_dp", {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False})
    adaptive = ("--speculative-eagle-topk", "1", "--speculative-adaptive-config", config)
    # The last --model-path counts.
    arguments = (*speculation, *adaptive, *TINY_MOE_ARGUMENTS, "--model-path", target)
    return _two(folder, "attention_dp", *arguments, "--dp-size", "2", "--enable-dp-attention")


def throughput(folder: Path, profiles: Path) -> CpuServer:
    """The throughput policy on one rank, warmed up, with its cost profiles in *profiles*; it can be started again."""
    options = {"candidate_steps": [0, 2, 5], "profile_dir": str(profiles)}
    config = _config(folder, "throughput", {"throughput": options, "warm_up": True})
    few = ("--max-running-requests", "4")
    return _server(folder, "throughput", *_speculation("--speculative-adaptive-config", config), *few)


def replicas(folder: Path) -> CpuServer:
    """Two data-parallel replicas, each with a throughput policy of its own."""
    config = _config(folder, "replicas", {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False})
    speculation = _speculation("--speculative-adaptive-config", config)
    # SGLang would look for a memory node a replica.
    return _server(folder, "replicas", *speculation, "--dp-size", "2", SGLANG_CPU_OMP_THREADS_BIND="0|1")


def standalone(folder: Path) -> CpuServer:
    """A model of its own drafts, the target's first two layers, under the throughput policy."""
    draft = cut.write(folder / "cut", 2, Path(models.target_path()))
    config = _config(folder, "standalone", {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False})
    speculation = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(draft))
    return _server(folder, "standalone", *speculation, "--speculative-adaptive-config", config, *_FEW_SLOTS, **_CHECKED)


def frozen_kv(folder: Path) -> CpuServer:
    """A draft that reads the target's keys and values, under the throughput policy."""
    config = _config(folder, "frozen_kv", {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False})
    target, draft = assistant.write(folder / "frozen")
    speculation = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", draft)
    # SGLang turns overlap off on a CPU for EAGLE alone; the last --model-path counts.
    more = ("--disable-overlap-schedule", "--model-path", target, *_FEW_SLOTS)
    return _server(folder, "frozen_kv", *speculation, "--speculative-adaptive-config", config, *more, **_CHECKED)


def ngram(folder: Path) -> CpuServer:
    """What was written before drafts, without a model, under the throughput policy."""
    config = _config(folder, "ngram", {"throughput": {"candidate_steps": list(WIDTHS)}, "warm_up": False})
    speculation = ("--speculative-algorithm", "NGRAM", "--speculative-adaptive-config", config)
    return _server(folder, "ngram", *speculation, *_FEW_SLOTS, **_CHECKED)


def layers(folder: Path) -> CpuServer:
    """Multi-layer EAGLE, three times the same layer, under the throughput policy as no file gives it."""
    config = _config(folder, "layers", {"policy": "throughput", "warm_up": False})
    many = ("--enable-multi-layer-eagle", "--speculative-num-steps", str(LAYERS), *_FEW_SLOTS)
    return _server(folder, "layers", *_speculation("--speculative-adaptive-config", config), *many, **_CHECKED)


def blocks(folder: Path) -> CpuServer:
    """Whole blocks of drafts from one pass, which sees the latest tokens, at the widths of no list."""
    config = _config(folder, "blocks", {"policy": "throughput", "warm_up": False})
    speculation = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", models.block_draft_path())
    window = ("--speculative-draft-window-size", "64", *_FEW_SLOTS)
    return _server(folder, "blocks", *speculation, "--speculative-adaptive-config", config, *window, **_CHECKED)


def keys(folder: Path) -> CpuServer:
    """The EMA policy behind two keys: one to ask the server, the other to change it."""
    config = _config(folder, "keys", {"1": {"candidate_steps": [1, 3]}})
    both = ("--api-key", KEY, "--admin-api-key", ADMIN_KEY)
    return _server(folder, "keys", *_speculation("--speculative-adaptive-config", config), *both)


def workers(folder: Path) -> CpuServer:
    """The EMA policy behind two HTTP workers, warmed up; an administrator's key protects what changes it."""
    config = _config(folder, "workers", {"1": {"candidate_steps": list(TIERS)}, "warm_up": True})
    many = ("--tokenizer-worker-num", "2", "--max-running-requests", "4", "--admin-api-key", ADMIN_KEY)
    # A worker that does not answer its supervisor is killed: imports on a busy machine, and workers that a test stops.
    patient = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}
    return _server(folder, "workers", *_speculation("--speculative-adaptive-config", config), *many, **patient)


SERVERS: dict[str, Callable[[Path], CpuServer]] = {
    server.__name__: server
    for server in (
        *(plain, ema, static, two_ranks, lookups, stock, faulty, tree, replicas, standalone, frozen_kv, ngram, layers),
        blocks,
        attention_dp,
        keys,
        workers,
    )
}
"""In the order of their tests; the fixture of each name gives the running server. No test of a later server uses ema,
which starts slowest, so it is started once.
"""


def _server(
    folder: Path, name: str, *arguments: str, kind: type[CpuServer] = ForkedServer, **variables: str
) -> CpuServer:
    return kind(
        ["--model-path", str(models.target_path()), *_COMMON, *arguments],
        log=folder / f"{name}.log",
        extra_environment={"XDG_CACHE_HOME": str(folder / "cache"), **variables},
        start_timeout=300.0,
    )


def _two(folder: Path, name: str, *arguments: str, **variables: str) -> CpuServer:
    """Two ranks, the second of which has a clock that lies; they log the depths of their rounds."""
    log = str(folder / rank_log(name))
    plugins = write_liar_plugin(folder / f"liar-{name}", log)
    path = os.pathsep.join([environment()["PYTHONPATH"], str(plugins)])
    # SGLang would look for NCCL and for a memory node a rank; a CPU has Gloo and two cores.
    without_nccl = {"SGLANG_NCCL_SO_PATH": str(folder / "no-nccl"), "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    more = ("--tp-size", "2", "--disable-custom-all-reduce")
    return _server(folder, name, *arguments, *more, PYTHONPATH=path, **without_nccl, **variables)


def _speculation(*more: str, topk: int = 1) -> tuple[str, ...]:
    draft = ("--speculative-draft-model-path", str(models.draft_path()))
    return ("--speculative-algorithm", "EAGLE3", *draft, "--speculative-eagle-topk", str(topk), *more)


def _jumpy(folder: Path, name: str) -> tuple[str, ...]:
    config = _config(folder, name, {"1": JUMPY_SLOT})
    return (
        *_speculation("--speculative-adaptive-config", config, "--speculative-num-steps", str(LAUNCH_STEPS)),
        *("--decode-log-interval", "1"),
    )


def _config(folder: Path, name: str, content: dict[str, object]) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return str(path)
