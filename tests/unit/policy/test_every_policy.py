"""Every policy that a configuration can name is checked, built, described and explained as itself.

Adding a policy takes two places: its file, and the import in ``policy/__init__.py`` that registers it. The example of
docs/contributing.md, which only these tests import, passes the same tests as the shipped policies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scripts import of_source
from sglang_adaptive.explain import explain
from sglang_adaptive.lab.simulate.contenders import contenders
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.policy.base import POLICIES, AdaptivePolicy
from sglang_adaptive.policy.choice import CapturedSteps
from sglang_adaptive.policy.config import AdaptiveConfig, check_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin.start import controller as start
from sglang_adaptive.validate import facts, words
from tests.fakes import controller, ema, serve

ROOT = Path(__file__).parents[3]
EXAMPLE = "token_budget"
NEEDED: dict[str, dict[str, Any]] = {"ema": {"1": {"candidate_steps": [1, 3]}}}
"""By policy, what a configuration needs besides its name."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the example, and unregister it afterwards."""
    before = dict(POLICIES)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    monkeypatch.delitem(sys.modules, EXAMPLE, raising=False)
    import_module(EXAMPLE)
    yield
    POLICIES.clear()
    POLICIES.update(before)


@pytest.fixture(params=[*POLICIES, EXAMPLE])
def config(request: pytest.FixtureRequest, example: None) -> AdaptiveConfig:
    name = request.param
    try:
        return check_config({"policy": name, **NEEDED.get(name, {})}, "test")
    except ConfigError as error:
        pytest.fail(f"say in NEEDED here what has to stand beside the name: {error}")


@pytest.fixture
def policy(config: AdaptiveConfig, monkeypatch: pytest.MonkeyPatch) -> AdaptivePolicy:
    """The policy as a server builds it, without a saved profile."""
    monkeypatch.setattr(start, "load_shared", lambda folder: None)
    monkeypatch.setattr(start, "require_on_all_ranks", lambda config: None)
    return start.build_policy(3, config)


def test_the_configuration_spelt_out_means_the_same(config: AdaptiveConfig) -> None:
    again = check_config(config.as_dict(), "test")
    assert again == config
    assert config.candidate_steps == sorted(set(config.candidate_steps))
    assert [*config.options.up_to(2).candidate_steps] == [steps for steps in config.candidate_steps if steps <= 2]


def test_its_keys_are_refused_beside_another_policy(config: AdaptiveConfig) -> None:
    own = [key for key in config.as_dict() if POLICIES[config.policy].options.owns(key, "")]
    assert own
    for name in POLICIES:
        if name != config.policy:
            with pytest.raises(ConfigError) as caught:
                check_config({"policy": name, own[0]: config.as_dict()[own[0]], **NEEDED.get(name, {})}, "test")
            assert caught.value.key == own[0]


def test_its_keys_mean_it_where_no_policy_is_named(config: AdaptiveConfig) -> None:
    named = config.as_dict()
    del named["policy"]
    assert check_config(named, "test") == config


def test_it_is_built_by_its_name(config: AdaptiveConfig, policy: AdaptivePolicy) -> None:
    successor = start.build_successor(config, ema().policy, 3, CapturedSteps(dict.fromkeys(config.candidate_steps)))
    for made in (policy, successor):
        assert isinstance(made, AdaptivePolicy) and made.name == config.policy
        assert made.candidate_steps == config.candidate_steps


def test_server_info_shows_its_configuration(config: AdaptiveConfig, policy: AdaptivePolicy) -> None:
    state = serve(controller(policy), 40, accepted=0.5)
    assert not state["degraded"]
    assert state["config"]["policy"] == config.policy
    assert json.loads(json.dumps(state)) == state, "snapshot() has to return JSON builtins"
    assert "\n".join(explain(state))


def test_validate_says_what_it_does(config: AdaptiveConfig) -> None:
    said = "\n".join(words(facts(config)))
    assert f'Policy "{config.policy}"' in said and "Nothing differs from the defaults." in said


def test_the_simulator_plays_it(config: AdaptiveConfig) -> None:
    setting = Setting(load_cost(None)[1], rounds=50, traces=1)
    trace = next(iter(SUITES["both"].traces(setting)))
    assert len(play(contenders(setting.ladder)[config.policy].make(trace), trace)) == 50


def test_the_reference_has_its_options(example: None) -> None:
    tables = of_source.configuration()
    assert all(f'"{name}"' in tables["top"][2] for name in POLICIES)
    meaning = "draft tokens that a verify pass may read"
    assert tables[EXAMPLE][-1] == f"| `tokens` | 256 | an integer from 1 to 100000 | {meaning} |"
