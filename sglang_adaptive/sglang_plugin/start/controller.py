"""Creates a scheduler's controller for SGLang's worker, and its policies."""

from __future__ import annotations

import atexit
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.config import AdaptiveConfig, TraceOptions
from sglang_adaptive.policy.profile import CostProfile
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_trace import RoundTrace
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.configuration import configuration, require_on_all_ranks
from sglang_adaptive.sglang_plugin.setup import drafts_blocks, drafts_layers
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing, load_shared, share_known
from sglang_adaptive.sglang_plugin.start.state_builds import GraphedDevice, ranks_pad_alike

logger = logging.getLogger(__name__)

KEPT_NAMES = 32
"""How many names of kernels that load while serving are kept."""


def build_policy(initial_steps: int, config: AdaptiveConfig, spec: Any = None) -> AdaptivePolicy:
    """Return the policy that *config* names; called where SGLang builds its own, on all ranks together.

    With *spec*, SGLang's arguments for speculation, it is `fitted` to a draft that makes at most *initial_steps*.
    """
    require_on_all_ranks(config)
    if spec is not None:
        config = fitted(config, initial_steps, spec)
    profile_dir = config.options.profile_dir
    return config.build_policy(initial_steps, lambda: load_shared(profile_dir))


def fitted(config: AdaptiveConfig, most: int, spec: Any) -> AdaptiveConfig:
    """Return what a server with arguments *spec* can run of *config*: up to *most* steps if the draft limits them."""
    if drafts_blocks(spec):
        return replace(config, options=config.options.of_block(most))
    return replace(config, options=config.options.up_to(most)) if drafts_layers(spec) else config


class ForWorker:
    """SGLang's protocol of a controller, as far as its worker uses it at start-up; in rounds, hooks call `Rounds`."""

    def __init__(self, controller: AdaptiveController) -> None:
        self.controller = controller

    def register(self, state: SpecRuntimeState) -> None:
        """Take the state of the launch steps, which SGLang has built."""
        self.controller.states.register(state)

    def init_states(self, cuda_graph_bs: list[int] | None = None) -> None:
        """Build nothing: SGLang calls this in the draft's scope, and `Rounds.start` builds all states outside of it."""


def build_successor(
    config: AdaptiveConfig, former: AdaptivePolicy, live_steps: int, built: CapturedSteps
) -> AdaptivePolicy:
    """Return the policy of *config*, which starts at *live_steps* with the estimates of *former*.

    Every tensor-parallel rank calls it at the same round; rank 0 broadcasts its measured round times.
    """

    def profile() -> CostProfile | None:
        return share_known(former) if former.keeps_profile else load_shared(config.options.profile_dir)

    policy = config.build_policy(live_steps, profile)
    policy.take_over(former, built)
    return policy


def make_controller(worker: Any, policy: AdaptivePolicy) -> AdaptiveController:
    """Return the controller of SGLang's *worker*, which starts with *policy*."""
    logging.getLogger("sglang.srt.speculative.eagle_worker_v2").addFilter(_drop_switch_lines)
    config = configuration()
    device = GraphedDevice(worker, config.prune_graphs and ranks_pad_alike())
    sharing = CostSharing(policy)
    controller = AdaptiveController(
        worker, policy, share_cost=sharing, device=device, profile_saved_at=sharing.saved_at
    )
    if not watches_acceptance():
        controller.acceptance_watch = None
    trace_rounds(controller, config.trace)
    _watch_kernel_loads(controller)
    return controller


def watches_acceptance() -> bool:
    """Whether this rank watches the draft's acceptance: the first of a batch does, unless NGRAM drafts."""
    from sglang.srt.runtime_context import get_spec

    return not ranks.of_the_batch().rank_in_group and get_spec().speculative_algorithm != "NGRAM"


def trace_rounds(controller: AdaptiveController, options: TraceOptions | None) -> None:
    """Record the rounds of *controller* from now on, as *options* says; None stops recording.

    All tensor-parallel ranks of a replica have the same rounds, so only the first one writes. Replicas after the first
    write separate files, named after their rank.
    """
    before, controller.trace = controller.trace, None
    wanted = None
    if options is not None and ranks.is_first():
        file, replica = Path(options.file).expanduser(), ranks.replica()
        wanted = file.with_name(f"{file.name}.dp{replica}") if replica else file
    if before is not None and before.file == wanted:
        controller.trace = before
        return
    if before is not None:
        atexit.unregister(before.close)
        before.end()
    if options is not None and wanted is not None:
        controller.trace = RoundTrace(wanted, options.max_mb * 1e6)
        atexit.register(controller.trace.close)


def _drop_switch_lines(record: logging.LogRecord) -> bool:
    """Drop SGLang's log line for each switch; /server_info has the switches with their causes."""
    return not str(record.msg).startswith("Switch adaptive runtime state")


def _watch_kernel_loads(controller: AdaptiveController) -> None:
    """In the controller's start-up report, list the Triton kernels that load after serving has begun."""
    try:
        from triton import knobs

        chain = knobs.runtime.kernel_load_start_hook
    except (ImportError, AttributeError):
        return
    from sglang.srt.utils import triton_load_watch

    late = controller.late_kernel_loads = list[str]()

    def on_load(module: Any, function: Any, name: str, metadata_group: Any, hash: Any) -> None:
        if triton_load_watch._serving_started and len(late) < KEPT_NAMES:
            late.append(name)
            logger.warning("adaptive: the Triton kernel %s loaded while serving", name)

    chain.add(on_load)
