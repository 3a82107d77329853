"""All environment variables of the package that a server reads.

Setting a switch to "0" turns a part of the package off, and SGLang's own code runs instead. Switches help to find out
whether that part is at fault; they need a restart.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the environment."""

    name: str
    help: str
    """What it does, for docs/configuration.md."""

    def get(self) -> str | None:
        """Return its value; None where it is not set."""
        return os.environ.get(self.name)

    def set(self, value: str | None) -> None:
        """Set it for this process and the children that it starts; None unsets it."""
        if value is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = value


@dataclass(frozen=True, slots=True)
class Switch(Variable):
    """A variable that turns a part off with "0"."""

    @property
    def is_off(self) -> bool:
        """Whether the part is turned off."""
        return self.get() == "0"


ACTIVE = Variable("SGLANG_ADAPTIVE_ACTIVE", "set by the launcher of an adaptive server for its children; not for users")
PROFILE_DIR = Variable(
    "SGLANG_ADAPTIVE_PROFILE_DIR", "folder of cost profiles; `throughput.profile_dir` in the configuration overrides it"
)
HTTP_APPLICATION = Variable(
    "SGLANG_ADAPTIVE_HTTP_APP", "set by the launcher for HTTP workers: the application that SGLang would serve"
)

ATTENTION_DP = Switch("SGLANG_ADAPTIVE_ATTENTION_DP", "adaptive steps with attention DP")
RESERVE_AHEAD = Switch("SGLANG_ADAPTIVE_RESERVE_AHEAD", "reserving KV slots for several rounds at once")
HOST_LENGTHS = Switch("SGLANG_ADAPTIVE_HOST_LENGTHS", "request lengths known without waiting after a zero-step round")
DEVICE_PLANS = Switch("SGLANG_ADAPTIVE_DEVICE_PLANS", "planning FlashInfer's passes on the device, without waiting")
DECODE_KERNEL = Switch("SGLANG_ADAPTIVE_DECODE_KERNEL", "the plain decode attention kernel in zero-step rounds")
CHAIN_KERNEL = Switch("SGLANG_ADAPTIVE_CHAIN_KERNEL", "the kernel for chains in the Triton backend's verify passes")
ZERO_STEP_CHOICE = Switch("SGLANG_ADAPTIVE_ZERO_STEP_CHOICE", "the kernels that choose tokens in zero-step rounds")
NGRAM_ROOTS = Switch("SGLANG_ADAPTIVE_NGRAM_ROOTS", "preparing NGRAM's zero-step rounds on the device")
NGRAM_PROMPTS = Switch("SGLANG_ADAPTIVE_NGRAM_PROMPTS", "prompts in NGRAM's corpus")
LENGTH_KERNEL = Switch("SGLANG_ADAPTIVE_LENGTH_KERNEL", "filling in fa3's lengths and page tables with one kernel")
VERIFY_SCHEDULE = Switch("SGLANG_ADAPTIVE_VERIFY_SCHEDULE", "computing fa3's tile schedule once per verify pass")
QUERIES_IN_PLACE = Switch("SGLANG_ADAPTIVE_QUERIES_IN_PLACE", "queries that fa3 reads in place")
LOOKUP_COUNTER = Switch("SGLANG_ADAPTIVE_LOOKUP_COUNTER", "counting the lookup drafts that would have been accepted")
EXTEND_METADATA = Switch("SGLANG_ADAPTIVE_EXTEND_METADATA", "building the draft extend's page table once per round")
SHORT_VERIFY = Switch("SGLANG_ADAPTIVE_SHORT_VERIFY", "replaying verify passes without SGLang's preparation")
SHORT_DRAFT = Switch("SGLANG_ADAPTIVE_SHORT_DRAFT", "replaying draft passes without SGLang's preparation")
SHORT_PREFILL = Switch("SGLANG_ADAPTIVE_SHORT_PREFILL", "chunks for which the draft computes only keys and values")
GREEDY_COMMIT = Switch("SGLANG_ADAPTIVE_GREEDY_COMMIT", "accepting greedy drafts with two kernels")
RELAY = Switch("SGLANG_ADAPTIVE_RELAY", "one kernel each to write and to read what a round starts from")
ISOLATION = Switch("SGLANG_ADAPTIVE_ISOLATION", "saving and restoring a batch through its dictionary")

SWITCHES = tuple(value for value in tuple(globals().values()) if isinstance(value, Switch))
"""All switches, in the order above."""
