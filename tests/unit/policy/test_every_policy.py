"""Every policy that a configuration can name is checked, built, put into words and explained as itself.

After a name is added to ``POLICY_NAMES``, these tests fail until each place knows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.calibrate.explain import explain
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config.captured_steps import CapturedSteps
from sglang_adaptive.policy.config.config import AdaptiveConfig, check_config
from sglang_adaptive.policy.config.schema import POLICY_NAMES
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin.scheduler import policies
from sglang_adaptive.validate.facts import facts
from sglang_adaptive.validate.words import words
from tests.live_controllers import controller, ema, serve

NEEDED: dict[str, dict[str, Any]] = {"ema": {"1": {"candidate_steps": [1, 3]}}}
"""By policy, what has to stand beside its name for a configuration to be accepted."""


@pytest.fixture(params=POLICY_NAMES)
def config(request: pytest.FixtureRequest) -> AdaptiveConfig:
    name = request.param
    try:
        return check_config({"policy": name, **NEEDED.get(name, {})}, "test")
    except KeyError as error:
        pytest.fail(f"check_config of policy/config/config.py does not know the policy {error}")
    except ConfigError as error:
        pytest.fail(f"say in NEEDED here what has to stand beside the name: {error}")


@pytest.fixture
def policy(config: AdaptiveConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AdaptivePolicy:
    """The policy as a server builds it, without a saved profile."""
    monkeypatch.setattr(policies, "load_shared", lambda folder: None)
    file = tmp_path / "adaptive.json"
    file.write_text(json.dumps(config.as_dict()))
    return policies.build_policy(3, str(file))


def test_the_configuration_spelt_out_means_the_same(config: AdaptiveConfig) -> None:
    again = check_config(config.as_dict(), "test")
    assert again == config, "a branch of check_config, or of as_dict, in policy/config/config.py"
    assert config.candidate_steps == sorted(set(config.candidate_steps))


def test_a_depth_that_was_not_built_is_refused(config: AdaptiveConfig) -> None:
    with pytest.raises(ConfigError, match="which was not built"):
        CapturedSteps({}).require(config)


def test_it_is_built_by_its_name(config: AdaptiveConfig, policy: AdaptivePolicy) -> None:
    assert policy.name == config.policy, "build_policy of sglang_plugin/scheduler/policies.py"
    built = CapturedSteps(dict.fromkeys(config.candidate_steps))
    successor = policies.build_successor(config, ema().params, 3, built)
    assert successor.name == config.policy, "build_successor of sglang_plugin/scheduler/policies.py"
    for made in (policy, successor):
        assert isinstance(made, AdaptivePolicy)
        assert made.candidate_steps == config.candidate_steps


def test_server_info_shows_its_configuration(config: AdaptiveConfig, policy: AdaptivePolicy) -> None:
    state = serve(controller(policy), 40, accepted=0.5)
    assert not state["degraded"]
    assert state["config"]["policy"] == config.policy, "the policy needs the attribute `config`"
    assert json.loads(json.dumps(state)) == state, "snapshot() has to return JSON builtins"
    assert "\n".join(explain(state)), "a branch of explain in calibrate/explain.py"


def test_validate_says_what_it_does(config: AdaptiveConfig) -> None:
    said = "\n".join(words(facts(config)))
    assert f'Policy "{config.policy}"' in said, "validate/facts.py and validate/words.py"
