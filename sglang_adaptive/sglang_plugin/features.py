"""The one list of optional features: what each does, what is lost without it, and what turns it off.

A feature is off where the server has a fact that it excludes (`setup.py`), where ``SGLANG_ADAPTIVE_OFF`` names it, and
after its first error (`guard.py`). Then SGLang's own code runs, or nothing does. ``/server_info`` has the reasons, and
the tables of docs/configuration.md come from here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin import env, setup
from sglang_adaptive.sglang_plugin.setup import Fact, Setup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Feature:
    """An optional part of the package."""

    does: str
    """What it does, as a phrase."""
    without: str
    """What is lost without it."""
    ranks_alike: bool = False
    """Whether all ranks that run the same batch must turn it off together."""
    excludes: tuple[Fact, ...] = ()
    """What rules it out, in the order in which to ask."""
    key: str | None = None
    """The key of the configuration that asks for it; None if a server has it by itself."""


# fmt: off
_SLOWER_1, _SLOWER_2 = "rounds take up to 1% longer", "rounds take up to 2% longer"
_HOST, _MEMORY = "a small model's rounds take longer on the host", "more GPU memory is used"
_EVERY_ROUND = "that happens in every round; after an error, drafts of the running requests are worse"

_DEFERRAL = (
    setup.OTHER_POOL, setup.REJECTION_SAMPLING, setup.MIXED_CHUNK, setup.STREAMING_SESSION, setup.DISAGGREGATION,
    setup.ATTENTION_DP,
)
_AROUND = (setup.ATTENTION_DP, setup.DECODE_CONTEXT_PARALLEL, setup.ALLTOALL, setup.OBSERVED, setup.OTHER_MODEL)
"""What SGLang does around passes."""
FEATURES: Mapping[str, Feature] = {
    "attention-dp": Feature("adaptive steps with attention DP", "the server speculates with fixed steps"),
    "exact": Feature(
        "verifies with tokens that SGLang's sampler draws", "parameters are not [exact](exactness.md)", True,
        (setup.DFLASH, setup.REJECTION_SAMPLING, setup.THRESHOLDS), "exact"),
    "lookups": Feature(
        "drafts that are copied from the request's own text", "rounds use the draft", True,
        (setup.OTHER_DRAFT, setup.OTHER_POOL, setup.TARGET_MLA, setup.DRAFT_MLA, setup.SPARSE_EXTEND,
         setup.REJECTION_SAMPLING, setup.SIMULATED, setup.ATTENTION_DP, setup.RINGS), "lookup"),
    "audit": Feature(
        "decodes finished requests again", "nothing is audited until a new configuration asks for it", False,
        (setup.ATTENTION_DP, setup.DISAGGREGATION), "audit"),
    "audit-room": Feature("ends an audit beside a user's request", "both run to their end", True),
    "metrics": Feature("metrics of adaptive speculation", "there are only SGLang's own"),
    "capacity": Feature("shallower rounds at the end of a context", "drafts are written beyond it, as in SGLang", True),
    "deferred-extend": Feature(
        "runs the draft's extend once for several zero-step rounds", _EVERY_ROUND, True,
        (setup.SKIPPED_EXTEND, setup.OTHER_DRAFT, setup.MULTIMODAL_DRAFT, setup.SPARSE_EXTEND, *_DEFERRAL)),
    "wide-extend": Feature("defers the extends of STANDALONE for longer", "its zero-step rounds are slower", True),
    "deferred-append": Feature(
        "makes a block drafter's keys and values once for several zero-step rounds", _EVERY_ROUND, True, _DEFERRAL),
    "zero-step-inputs": Feature("reuses inputs of zero-step rounds", "each runs four more small kernels"),
    "zero-step-choice": Feature("chooses tokens with two kernels", "zero-step rounds take up to 1% longer"),
    "decode-kernel": Feature(
        "the attention kernel of a plain decode (Triton, FlashInfer)", "zero-step rounds take up to 2.2 times as long"),
    "host-lengths": Feature("knows request lengths without waiting (FlashInfer)", "zero steps are some tenths slower"),
    "ngram-roots": Feature(
        "prepares NGRAM's rounds on the device", "zero-step rounds take up to 2.4 times as long", True),
    "ngram-prompts": Feature("prompts in NGRAM's corpus", "drafts cover less text copied from prompts", True),
    "device-plans": Feature(
        "plans FlashInfer's passes on the device", "rounds with drafts take up to 1.6 times as long", False,
        (setup.OTHER_DRAFT, setup.OTHER_PREPARATION, setup.TWO_BATCHES, *_AROUND, setup.NOT_FLASHINFER)),
    "chain-kernel": Feature("verifies chains on Triton's backend", "large batches take up to twice as long"),
    "length-kernel": Feature("fills in fa3's lengths and page tables with one kernel", _SLOWER_1),
    "verify-schedule": Feature("computes fa3's tile schedule once for all layers", _SLOWER_2),
    "queries-in-place": Feature("lets fa3 read queries in place", _SLOWER_2),
    "extend-metadata": Feature("builds the draft extend's page table once (fa3)", _SLOWER_2),
    "reserve-ahead": Feature("reserves KV slots for several rounds at once", _SLOWER_1, True),
    "short-verify": Feature(
        "replays verify passes without SGLang's preparation", _HOST, True,
        (setup.OTHER_PREPARATION, setup.NOT_FA3, setup.OTHER_GRAPHS, *_AROUND)),
    "short-draft": Feature(
        "replays draft passes without SGLang's preparation", _HOST, True,
        (setup.OTHER_PREPARATION, setup.SPARSE_EXTEND, setup.REJECTION_SAMPLING, *_AROUND, setup.NOT_FA3,
         setup.READS_MASK, setup.OTHER_GRAPHS)),
    "short-prefill": Feature(
        "writes only the draft's keys and values in chunks of a prompt", "long prompts take up to 3% longer", True,
        (setup.ATTENTION_DP, setup.REJECTION_SAMPLING, setup.SEVERAL_LAYERS)),
    "greedy-commit": Feature("accepts greedy drafts with two kernels", _SLOWER_2),
    "relay": Feature("passes state to the next round with one kernel", _SLOWER_2),
    "isolation": Feature("saves a batch's state through its dictionary", _HOST),
    "short-captures": Feature("captures CUDA graphs without a run before each", "start-up takes some seconds longer"),
    "shared-rows": Feature("lets verify graphs share the rows of hidden states", _MEMORY),
    "shared-tables": Feature("lets depths share fa3's page tables", _MEMORY),
}
# fmt: on
"""By the name in logs, ``/server_info`` and ``SGLANG_ADAPTIVE_OFF``."""


def turned_off() -> frozenset[str]:
    """Return the features that ``SGLANG_ADAPTIVE_OFF`` names.

    Raises:
        ConfigError: It names something else.
    """
    names = {name.strip() for name in os.environ.get(env.OFF, "").split(",")} - {""}
    if unknown := sorted(names - FEATURES.keys()):
        raise ConfigError("environment", env.OFF, f"got {', '.join(unknown)}", f"some of {', '.join(FEATURES)}")
    return frozenset(names)


def why_not(name: str, found: Setup) -> str | None:
    """Return why the feature *name* cannot run in the setup *found*; None if it can."""
    if name in turned_off():
        return _BY_VARIABLE
    known = (fact for fact in FEATURES[name].excludes if fact.known_early or found.arguments is None)
    return next((fact.phrase for fact in known if fact.holds(found)), None)


def may(name: str, found: Setup, asked: bool = True) -> bool:
    """Whether the feature *name* can run in the setup *found*; if not, the log and ``/server_info`` say why.

    *asked* says whether a key of the configuration that has one asks for it.
    """
    try:
        reason = why_not(name, found)
    except Exception as error:
        logger.exception("adaptive: the setup could not be checked")
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        reasons[name] = reason
        if FEATURES[name].key is None or not asked:
            logger.info("adaptive: %s is off: %s", name, reason)
        else:
            logger.warning("adaptive: %s is off: %s", name, reason)
    return reason is None


def off() -> dict[str, str]:
    """Return the features that are off in this process, and why."""
    return dict.fromkeys(sorted(turned_off()), _BY_VARIABLE) | reasons


reasons: dict[str, str] = {}
"""Why features are off in this process; it serves one server, and guards exist before its `Rounds`."""
_BY_VARIABLE = f"{env.OFF} names it"
