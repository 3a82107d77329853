"""The interface of a policy, what it may offer beyond that, and the registry of those that a configuration can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from sglang_adaptive.policy.observation import RoundObservation, Shape
from sglang_adaptive.policy.options import PolicyOptions

if TYPE_CHECKING:
    from sglang_adaptive.policy.config import AdaptiveConfig, CapturedSteps
    from sglang_adaptive.policy.profile import CostProfile, ProfileKey


@runtime_checkable
class AdaptivePolicy(Protocol):
    """Chooses the draft steps of the next round.

    ``name``, ``observe`` and ``snapshot`` are this package's, the other members those of SGLang 0.5.23's
    ``AdaptiveSpecPolicy``, whose ``on_verify_complete`` nobody calls here. A policy is pure: no clock and no I/O, and
    the same inputs give the same decisions, because every tensor-parallel rank runs its own copy.
    """

    name: str

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that the policy may choose, ascending; a runtime state is built for each."""

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Tell the policy which batch sizes have CUDA graphs; None when graphs are off."""

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the CUDA-graph batch sizes at which *step* can be chosen; None when graphs are off."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the draft steps for the round about to start with *batch_size* requests; called once a round."""

    def observe(self, observation: RoundObservation) -> None:
        """Learn from a round, whose result may arrive after the next one was chosen: it says which depth drafted it."""

    def snapshot(self) -> dict[str, Any]:
        """Return the policy's state as JSON builtins, for monitoring."""


# -- what a policy may have beyond that; the runtime asks with isinstance --------------------------------------------


@runtime_checkable
class ChoosesBudgets(Protocol):
    """A policy that may also choose how many drafts of a round to verify."""

    budget: int | None
    """Mean drafts to verify of a request in the round that was asked for last; None for all of them."""

    def allow_budgets(self, allowed: bool) -> None:
        """Say whether the server can verify fewer drafts than it makes; without it rounds have no budget."""


@runtime_checkable
class LooksUp(Protocol):
    """A policy that may choose rounds whose drafts are looked up in each request's own text.

    Such a round takes the place of one of as many steps: ``candidate_steps`` has its number of drafts.
    """

    @property
    def lookup_drafts(self) -> Sequence[int]:
        """The drafts of each kind of such rounds, ascending and more than any draft steps; empty without lookups."""

    @property
    def lookup_requests(self) -> int:
        """The most requests of a round whose texts have to be followed for lookups; 0 while none has to be."""

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        """Say whether the server can look drafts up; without it no such round is chosen.

        *behind* are the rounds whose results are under way when one is chosen: 1 with overlap scheduling.
        """


@runtime_checkable
class LearnsAcceptance(Protocol):
    """A policy that estimates how likely drafts are to be accepted."""

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether more shadow drafts at zero steps are worth their price now."""

    def doubt_acceptance(self) -> None:
        """Keep little evidence for the estimate, as after an update of weights; round times stay."""


@runtime_checkable
class LearnsCost(Protocol):
    """A policy that also learns from the clock.

    Tensor-parallel ranks read different clocks and must decide alike. So readings change nothing by themselves: at
    rounds that the policy names, counted in rounds and hence the same on every rank, the first rank's table is handed
    to all of them, and between such rounds the table stands.
    """

    cost_sync_due: bool
    """Whether the table has to be handed over now; ``import_cost`` clears it."""

    def export_cost(self) -> dict[str, Any]:
        """Return what this rank has measured, as builtins."""

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        """Decide on the first rank's measurements from now on."""


@runtime_checkable
class KeepsProfile(Protocol):
    """A policy whose measured round times are kept for the next start."""

    options: Any
    """Its ``PolicyOptions``; ``profile_dir`` says where profiles are kept."""

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured; *measured* says how, in words."""

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the same, and for what was not measured the times that the server was started with."""


@runtime_checkable
class TakesOver(Protocol):
    """A policy that can follow on another while the server runs, and keep to the CUDA graphs that were captured."""

    def take_over(self, former: AdaptivePolicy, built: CapturedSteps) -> None:
        """Go on with what *former* has learnt, as far as it fits, and choose only depths with graphs in *built*."""


class Outlook(NamedTuple):
    """What a rank expects of the coming round, for a vote of several ranks."""

    rounds: Mapping[int, float]
    """By steps, the rounds that a text of its batch takes for one round of the live steps."""
    seconds: Mapping[int, float]
    """By steps, the time of a round; only of those that may run."""
    probe: int | None
    """Steps that it wants to try in the coming round; None without a probe."""


@runtime_checkable
class Votes(Protocol):
    """A policy that can agree on the steps with those of other ranks."""

    def outlook(self, batch_size: int, live: int) -> Outlook:
        """Return what it expects of a round of *batch_size*, as seen from *live* steps."""

    def follow(self, batch_size: int, steps: int, running: int, leads: bool) -> None:
        """Take *running* for the steps of the coming round, whatever the policy would choose.

        *batch_size* is the largest of all ranks, and *steps* were agreed on without a probe. *leads* says whether this
        is the rank with most requests: only its probes are run, and only it considers new ones. All ranks learn from a
        probe and are charged for it, or each would begin its own when its turn comes to have most requests.
        """


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a round of one depth and batch size promises."""

    tokens_per_second: float
    """Output tokens of all requests of the round, bonus tokens included."""
    speedup: float | None
    """That rate over the one at zero steps; None when the policy has no time for zero steps."""


@dataclass(frozen=True, slots=True)
class RoundPrices:
    """What a policy believes of rounds at one batch size, by draft steps, seen from rounds of one depth."""

    seconds: Mapping[int, float]
    """Wall time of a round."""
    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""
    tokens: Sequence[float]
    """Expected tokens of one request in a round, indexed by steps from 0."""
    tokens_deviation: Mapping[int, float]
    """Relative standard deviation of ``tokens`` over those of the depth that it is seen from; deeper ones alone."""
    with_budget: Mapping[Shape, float] = field(default_factory=dict)
    """Wall time by shape, rounds that verify fewer drafts than they make included."""


@runtime_checkable
class Forecasts(Protocol):
    """A policy with a cost model and an estimate of acceptance, for metrics."""

    def forecast(self, batch_size: int, steps: int) -> Forecast | None:
        """Return what *steps* promises at *batch_size*; None for a depth that the policy has no time for."""

    def acceptance_by_position(self) -> Sequence[float]:
        """Return, from position 1 on, the probability that a draft is accepted when the one before it was."""


@runtime_checkable
class Prices(Protocol):
    """A policy that can say what a round of another depth would have brought, for the history."""

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        """Return what every depth promises at *batch_size*, seen from rounds drafted with *steps*."""


@dataclass(frozen=True, slots=True)
class ProbeTotals:
    """What probes have cost since the policy was made; neither number ever falls."""

    started: int
    lost_seconds: float
    """Seconds lost against the depth that would have run, once it is known; a probe under way is not in it."""


@runtime_checkable
class Probes(Protocol):
    """A policy that now and then runs a depth in order to learn about it."""

    @property
    def probing(self) -> bool:
        """Whether the depth that was returned last is a probe's."""

    def probe_totals(self) -> ProbeTotals:
        """Return what probes have cost so far."""


# -- the registry ----------------------------------------------------------------------------------------------------


Build = Callable[[int, Any, Callable[[], "CostProfile | None"]], AdaptivePolicy]
"""Makes a policy from the steps that the server starts with, which need not be among its depths; an ``AdaptiveConfig``;
and what loads the saved round times of this server, None without (all ranks load together)."""


class Registered(NamedTuple):
    """A policy that a configuration can name."""

    policy: type[AdaptivePolicy]
    options: type[PolicyOptions]
    build: Build


POLICIES: dict[str, Registered] = {}
"""By name. Importing ``sglang_adaptive.policy`` fills it."""
DEFAULT_POLICY = "throughput"
"""Of a configuration that names none and has no key of another."""

P = TypeVar("P", bound=type[AdaptivePolicy])


def register(options: type[PolicyOptions], build: Build | None = None) -> Callable[[P], P]:
    """Let configurations name the decorated policy, with *options*.

    Without *build* it is called with the steps that the server starts with, and the checked options.
    """

    def add(policy: P) -> P:
        options.policy = policy.name
        made: Any = policy

        def plainly(steps: int, config: AdaptiveConfig, profile: object) -> AdaptivePolicy:
            return made(steps, config.options)  # type: ignore[no-any-return]

        POLICIES[policy.name] = Registered(policy, options, build or plainly)
        return policy

    return add


def build_policy(
    config: AdaptiveConfig, initial_steps: int, profile: Callable[[], CostProfile | None] = lambda: None
) -> AdaptivePolicy:
    """Return the policy that *config* names; its attribute ``config`` is for /server_info."""
    made: Any = POLICIES[config.policy].build(initial_steps, config, profile)
    made.config = config
    return made  # type: ignore[no-any-return]
