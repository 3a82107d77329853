"""Every published launch line gets the expected verdict from the doctor's own code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_adaptive.doctor import advice
from sglang_adaptive.sglang_plugin.launch.line import CHANGES, mend
from tests.launch_lines.verdicts import ADAPTS, STATIC, WITH_LESS, expected, launched, launcher, lines, verdict

pytestmark = pytest.mark.engine

LINES = {line["name"]: line for line in lines()}
STOPPED_BY = {
    "topk_gt_1": "speculative_eagle_topk=",
    "dspark": "=DSPARK",
    "two_batch_overlap": "enable_two_batch_overlap",
    "lora": "LoRA",
    "pd_prefill": "a prefill server drafts nothing",
}
"""What each kind of setup, as labeled in the collection, must be stopped by; a line of several kinds by one of them."""
LOCAL_CONTROL = "--enable-dp-attention-local-control-broadcast"


@pytest.fixture(scope="module", autouse=True)
def _launcher() -> Iterator[None]:
    with launcher():
        yield


@pytest.mark.parametrize("name", LINES)
def test_verdict(name: str) -> None:
    assert verdict(LINES[name]) == expected()[name]


def test_every_line_has_an_expected_verdict() -> None:
    assert set(expected()) == set(LINES)


@pytest.mark.parametrize("name", LINES)
def test_verdict_fits_the_labels_of_the_collection(name: str) -> None:
    """The labels come from reading the lines, before there was a verdict."""
    kinds, found = set(LINES[name]["kinds"]), expected()[name]
    reasons = [words for kind, words in STOPPED_BY.items() if kind in kinds]
    if kinds >= {"dp_attention", "multi_layer_mtp"}:
        reasons.append("enable_multi_layer_eagle=")
    if LOCAL_CONTROL in LINES[name]["argv"]:
        reasons.append(LOCAL_CONTROL)
    if not reasons:
        assert found["verdict"] in (ADAPTS, WITH_LESS)
        assert (found["verdict"] == WITH_LESS) == ("pd_decode" in kinds)
    else:
        assert found["verdict"] == STATIC and any(words in found["reason"] for words in reasons)


@pytest.mark.parametrize("name", LINES)
def test_flags_that_the_parser_refused_are_those_that_are_renamed(name: str) -> None:
    assert set(expected()[name]["renamed"]) == set(LINES[name].get("unknown_flags", ()))
    assert mend(mend(LINES[name]["argv"])[0]) == (mend(LINES[name]["argv"])[0], [])


@pytest.mark.parametrize("name", [name for name, found in expected().items() if found["verdict"] == STATIC])
def test_a_line_that_does_not_adapt_gets_advice(name: str) -> None:
    words = advice(expected()[name]["reason"], {"steps": 3, "depths": [0, 1, 2, 3, 5]})
    assert words is not None and ("--" in words or "decode server" in words)


def test_no_line_drafts_with_the_target_by_mistake() -> None:
    # A smaller model's stub is the target's, if that drafts.
    others = {name: line for name, line in LINES.items() if line["algorithm"] != "STANDALONE"}
    assert not [name for name, line in others.items() if launched(line)["hint"] is not None]


def test_sglang_takes_the_new_names_and_not_the_old_ones() -> None:
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    assert not known & {change.flag for change in CHANGES}
    assert {change.write.split()[0] for change in CHANGES if change.write} <= known
