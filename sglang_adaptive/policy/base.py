"""The policy interface, and the registry of policies that a configuration can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from sglang_adaptive.policy.choice import CapturedSteps, Choice, Coming
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.options import PolicyOptions

if TYPE_CHECKING:
    from sglang_adaptive.policy.profile import CostProfile, ProfileKey


class Outlook(NamedTuple):
    """What a rank expects of the coming round, for a vote among ranks."""

    rounds: Mapping[int, float]
    """By steps, how many rounds produce the text of one round at the live steps."""
    seconds: Mapping[int, float]
    """By steps, the time of a round; only steps that may run."""
    probe: int | None
    """Steps to probe in the coming round; None without a probe."""


@dataclass(frozen=True, slots=True)
class RoundPrices:
    """A policy's estimates for rounds at one batch size, by draft steps, based on rounds of one depth."""

    seconds: Mapping[int, float]
    """Wall time of a round."""
    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""
    tokens: Sequence[float]
    """Expected tokens per request in a round, indexed by steps from 0."""
    tokens_deviation: Mapping[int, float]
    """Relative standard deviation of ``tokens`` over those of the base depth; only for deeper ones."""
    lookups: Mapping[int, float] = field(default_factory=dict)
    """Wall time of a lookup round, by its drafts."""

    def rate(self, steps: int) -> float | None:
        """Return the expected tokens/s of a request in rounds of *steps*, with bonus tokens; None without a time."""
        return self.tokens[steps] / self.seconds[steps] if steps in self.seconds else None


@dataclass(frozen=True, slots=True)
class ProbeTotals:
    """The cost of probes since the policy was created; neither number ever decreases."""

    started: int
    lost_seconds: float
    """Seconds lost against the depth that would have run, once known; a probe in progress is excluded."""


class AdaptivePolicy:
    """Decides what each round does.

    A policy uses no clock and no I/O, and the same inputs give the same decisions, because every tensor-parallel rank
    runs its own copy. It needs the members up to ``snapshot``; what follows is what it may offer beyond them.
    """

    name: ClassVar[str]
    candidate_steps: list[int]
    """Every number of draft steps that the policy may choose, ascending; each gets a runtime state."""

    def choose(self, coming: Coming) -> Choice:
        """Return what the coming round does; called once per round."""
        raise NotImplementedError

    def observe(self, observation: RoundObservation) -> None:
        """Learn from a round, whose result may arrive after the next one was chosen."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """Return the policy's state as JSON builtins, for monitoring."""
        raise NotImplementedError

    # -- CUDA graphs -----------------------------------------------------------------------------------------------

    _graph_sizes: list[int] | None = None

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Set the batch sizes that have CUDA graphs; None when graphs are off."""
        self._graph_sizes = cuda_graph_bs

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return those at which *step* can be chosen, each unless a policy says otherwise; None when graphs are off."""
        return self._graph_sizes

    # -- lookups: rounds whose drafts are looked up in each request's own text -------------------------------------

    lookup_kinds: Mapping[int, range] = {}
    """By number of drafts, which is none of ``candidate_steps``, the batch sizes of these rounds; each gets a runtime
    state."""
    lookup_requests = 0
    """Largest batch size of these rounds; 0 while there are none."""

    @property
    def tracks_texts(self) -> bool:
        """Whether the texts of batches up to that size must be tracked in the coming round."""
        return False

    @property
    def searches_memory(self) -> bool:
        """Whether finished texts are searched for tracked requests in the coming round."""
        return False

    def expect_copies(self) -> None:
        """Note that a request joined whose prompt was seen before, so that its text may have been as well."""

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        """Set whether the server can look drafts up; if not, the policy chooses no lookup round.

        *behind* is the number of rounds in flight when a round is chosen: 1 with overlap scheduling.
        """

    # -- an estimate of acceptance ---------------------------------------------------------------------------------

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether more shadow drafts at zero steps are worth their cost now."""
        return False

    def doubt_acceptance(self) -> bool:
        """Keep little evidence for the estimate, as after a weight update; return whether there is one."""
        return False

    # -- measured round times --------------------------------------------------------------------------------------

    # Tensor-parallel ranks read different clocks but must decide alike. So readings alone change no decision. At rounds
    # that the policy names, which are the same on every rank, all ranks receive the first rank's table. Between these
    # rounds the table does not change.

    cost_sync_due = False
    """Whether the table must be shared now; ``import_cost`` clears it."""

    def export_cost(self) -> dict[str, Any]:
        """Return this rank's measurements as builtins."""
        raise NotImplementedError

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        """Base decisions on the first rank's measurements from now on."""
        raise NotImplementedError

    # -- a vote among ranks ----------------------------------------------------------------------------------------

    def outlook(self, batch_size: int, live: int) -> Outlook | None:
        """Return what it expects of a round of *batch_size*, relative to the *live* steps; None without a vote."""
        return None

    def follow(self, batch_size: int, choice: Choice, steps: int, leads: bool) -> None:
        """Run *choice* in the coming round instead of the policy's own.

        *batch_size* is the largest of all ranks, and *steps* are those agreed on without a probe. *leads* says whether
        this rank has the most requests: only its probes run, and only it considers new ones. All ranks learn from a
        probe and are charged for it. Otherwise each rank would start its own once it has the most requests.
        """

    # -- figures for monitoring ------------------------------------------------------------------------------------

    def acceptance_by_position(self) -> Sequence[float]:
        """Return, from position 1 on, the probability that a draft is accepted if the one before it was."""
        return ()

    def prices(self, batch_size: int, steps: int) -> RoundPrices | None:
        """Return estimates for every depth at *batch_size*, based on rounds drafted with *steps*; None without any."""
        return None

    def probe_totals(self) -> ProbeTotals | None:
        """Return the cost of probes so far; None if it makes none."""
        return None

    # -- round times that are saved --------------------------------------------------------------------------------

    keeps_profile: ClassVar[bool] = False
    """Whether measured round times are saved for the next start, in the folder ``profile_dir`` of ``options``. Such a
    policy is built with a third argument: a ``CostProfile`` of the saved ones, or None."""
    options: PolicyOptions

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured; *measured* describes how, in words."""
        raise NotImplementedError

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the same, completed with the times that the server was started with."""
        raise NotImplementedError

    # -- replacing another policy while the server runs ------------------------------------------------------------

    keeps_to_graphs: ClassVar[bool] = False
    """Whether it then chooses only depths with captured CUDA graphs."""

    def take_over(self, former: AdaptivePolicy, built: CapturedSteps) -> None:
        """Continue with what *former* has learned, where it fits; *built* says which depths have graphs."""


# -- the registry ----------------------------------------------------------------------------------------------------


class Registered(NamedTuple):
    """A policy that a configuration can name."""

    policy: type[AdaptivePolicy]
    options: type[PolicyOptions]


POLICIES: dict[str, Registered] = {}
"""By name; importing ``sglang_adaptive.policy`` fills it."""
DEFAULT_POLICY = "throughput"
"""For a configuration that names no policy and has no key of another one."""

P = TypeVar("P", bound=type[AdaptivePolicy])


def register(options: type[PolicyOptions]) -> Callable[[P], P]:
    """Let configurations name the decorated policy, which is called with the server's initial steps and *options*.

    The initial steps need not be among its depths.
    """

    def add(policy: P) -> P:
        options.policy = policy.name
        POLICIES[policy.name] = Registered(policy, options)
        return policy

    return add
