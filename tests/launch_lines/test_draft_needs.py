"""A line that cannot start with its kind of speculation is reported as a problem, with the fix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.doctor import advice
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin.launch import checkup
from tests.forked_servers import NO_MODEL
from tests.launch_lines.verdicts import HERE, launcher
from tests.releases import IS_OLDER

pytestmark = pytest.mark.engine

CONFIG, ALGORITHM, DRAFT, TREE = (
    "--speculative-adaptive-config",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-eagle-topk",
)
HOT = "object has no attribute 'hot_token_id'"
DSPARK_IS_STATIC = "speculative_algorithm=DSPARK (only EAGLE/EAGLE3 are supported)"
ADD_DRAFT = "add --speculative-draft-model-path DRAFT"
NO_DP = "support dp attention" if IS_OLDER else "requires --enable-dp-lm-head"
"""SGLang's message for DFLASH."""
ATTENTION_DP = ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")


@pytest.fixture(scope="module", autouse=True)
def _launcher() -> Iterator[None]:
    with launcher():
        yield


def model(name: str) -> str:
    """Return the folder of a model's stub configuration."""
    return str(HERE / "configs" / name)


def asked(target: str, *more: str, config: str | None = "throughput") -> dict[str, Any]:
    """Return what the doctor finds about a line; without a GPU, as here."""
    adaptive = [] if config is None else [CONFIG, config]
    return checkup.launch(["--model-path", target, *more, *adaptive])


CANNOT_START: list[tuple[str, list[str], list[str]]] = [
    ("llama", [ALGORITHM, "EAGLE3"], [f"'LlamaForCausalLM' {HOT}: EAGLE3 drafts with a model", ADD_DRAFT]),
    ("llama", [ALGORITHM, "eagle3", DRAFT, model("llama")], [HOT, ADD_DRAFT]),
    ("deepseek-v3", [ALGORITHM, "EAGLE3"], [f"'DeepseekV3ForCausalLMNextN' {HOT}", ADD_DRAFT]),
    ("llama", [ALGORITHM, "EAGLE3", DRAFT, model("llama-eagle")], [HOT, "not an EAGLE-3 draft", f"{ALGORITHM} EAGLE "]),
    ("gemma-4", [ALGORITHM, "EAGLE3", DRAFT, model("gemma-4-assistant")], [f"requires {ALGORITHM} NEXTN or EAGLE"]),
    ("llama", [ALGORITHM, "STANDALONE", DRAFT, model("llama-eagle3")], ["hidden states", f"{ALGORITHM} EAGLE3"]),
    ("llama", [ALGORITHM, "STANDALONE", DRAFT, model("qwen2"), *ATTENTION_DP], ["does not support dp attention"]),
    ("gemma-4", [ALGORITHM, "FROZEN_KV_MTP"], ["before the model was bound", ADD_DRAFT]),
    ("llama", [ALGORITHM, "NGRAM", *ATTENTION_DP], ["does not support dp attention"]),
    ("llama", [ALGORITHM, "DFLASH"], ["DFLASH speculative decoding requires setting --speculative-draft-model-path"]),
    ("llama", [ALGORITHM, "DFLASH", DRAFT, model("dflash"), *ATTENTION_DP], [NO_DP]),
    ("qwen3", [ALGORITHM, "DSPARK"], ["DSpark dense", "requires setting --speculative-draft-model-path"]),
    ("llama", [ALGORITHM, "UNO"], ["UNO requires --uno-lora-path"]),
    ("mimo", [ALGORITHM, "MTP"], ["Unknown speculative algorithm name: MTP", f"{ALGORITHM} NEXTN"]),
    ("llama", [ALGORITHM, "EAGLE", DRAFT, model("llama-eagle"), TREE, "4"], ["add --speculative-num-steps"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "more", "told"), CANNOT_START, ids=[" ".join([target, *more[1:2]]) for target, more, _ in CANNOT_START]
)
def test_what_is_missing_is_named(target: str, more: list[str], told: list[str]) -> None:
    """With the adaptive flag and without it."""
    for config in ("throughput", None):
        refused = asked(model(target), *more, config=config).get("refused")
        assert refused is not None and all(words in refused for words in told)


def test_a_draft_that_is_missing_is_named_for_a_model_that_is_not_here() -> None:
    assert HOT in asked(NO_MODEL, ALGORITHM, "EAGLE3")["refused"]
    for algorithm in ("EAGLE3", "STANDALONE", "DSPARK"):
        assert "refused" not in asked(NO_MODEL, ALGORITHM, algorithm, DRAFT, f"{NO_MODEL}-draft")
    assert "refused" not in asked(NO_MODEL, ALGORITHM, "DSPARK"), "the checkpoint may have the draft"


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("llama", ["EAGLE3", DRAFT, model("llama-eagle3")]),
        ("kimi-k2.5", ["EAGLE3", DRAFT, model("kimi-k2.5-eagle3")]),
        ("llama", ["EAGLE", DRAFT, model("llama-eagle")]),
        ("gemma-4", ["EAGLE", DRAFT, model("gemma-4-assistant")]),
        ("deepseek-v3", ["EAGLE"]),
        ("qwen3-next", ["NEXTN"]),
        ("qwen2", ["STANDALONE", DRAFT, model("llama")]),
        ("qwen2", ["NGRAM"]),
        ("deepseek-v4-dspark", ["DSPARK"]),
        ("llama", ["DFLASH", DRAFT, model("dflash")]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_line_that_has_what_it_needs_is_none(target: str, more: list[str]) -> None:
    found = asked(model(target), ALGORITHM, *more)
    assert "refused" not in found and found["hint"] is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"dflash_config": {"projector_type": "domino", "shift_label": True, "pure_draft_prefix_len": 1}
             | {"gru_hidden_dim": 8, "emb_dim": 8}},
            "Domino",
        ),
        ({"architectures": ["LiLiCorrDraftModel"]}, "LiLiCorr"),
    ],
    ids=["Domino", "LiLiCorr"],
)  # fmt: skip
def test_a_head_of_a_block_draft_whose_width_is_fixed_is_named(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    plain = json.loads((HERE / "configs" / "dflash" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(plain | changes))
    found = asked(model("llama"), ALGORITHM, "DFLASH", DRAFT, str(tmp_path))
    assert "refused" not in found and told in found["reason"]
    assert advice(found["reason"], {}) is not None


def test_steps_on_the_line_say_nothing_about_a_block() -> None:
    """SGLang sets them to 1 for a block; for other drafts they must be a candidate."""
    found = asked(model("llama"), ALGORITHM, "DFLASH", DRAFT, model("dflash"), "--speculative-num-steps", "4")
    assert "refused" not in found and found["reason"] is None
    assert found["features_off"] == ["exact is off: DFLASH accepts drafts in its own function"]
    found = asked(model("deepseek-v4-dspark"), ALGORITHM, "DSPARK", "--speculative-num-steps", "4")
    assert "refused" not in found and found["reason"] == DSPARK_IS_STATIC


@pytest.mark.parametrize("role", ["null", "prefill"])
def test_a_dspark_line_speculates_as_without_this_package(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's checks, then SGLang's own resolution of speculation as on a GPU."""
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.server_args import prepare_server_args

    from sglang_adaptive.sglang_plugin import env, hooks
    from sglang_adaptive.sglang_plugin.launch import activation

    for name in ("warn_when_untested", "install_now", "of_launcher"):
        monkeypatch.setattr(hooks, name, lambda *_: [])
    monkeypatch.setenv(env.ACTIVE, "before")  # the launcher sets it for its children
    line = ["--model-path", model("deepseek-v4-dspark"), ALGORITHM, "DSPARK", "--disaggregation-mode", role]
    plain, ours = (prepare_server_args([*line, *more]) for more in ([], [CONFIG, "throughput"]))
    activation._prepare(ours)
    for server_args in (plain, ours):
        declare_resolution(server_args, __name__, device="cuda")
        speculative_hook.handle_speculative_decoding(server_args)
    names = ("adaptive", "num_steps", "eagle_topk", "num_draft_tokens", "draft_model_path")
    of_plain, of_ours = (
        {name: getattr(cfg, f"speculative_{name}") for name in names} for cfg in map(resolving_view, (plain, ours))
    )
    assert of_plain == of_ours and not of_ours["adaptive"] and of_ours["num_draft_tokens"] is not None


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["EAGLE"], "the whole model would draft for itself; add --speculative-draft-model-path DRAFT"),
        (["STANDALONE"], "the whole model would draft for itself; add --speculative-draft-model-path DRAFT, a smaller"),
        (["NEXTN", DRAFT, model("llama-eagle3")], "--speculative-algorithm EAGLE3 more of its drafts are right"),
    ],
)
def test_what_starts_and_is_wasteful_is_hinted_at(more: list[str], told: str) -> None:
    found = asked(model("llama"), ALGORITHM, *more)
    assert "refused" not in found and told in found["hint"]


@pytest.mark.parametrize(
    ("target", "more", "told"),
    [
        ("deepseek-v3", [], "only on Triton: try --speculative-draft-attention-backend triton"),
        ("deepseek-v3", ["--attention-backend", "flashinfer"], "only on Triton, and the draft would use flashinfer"),
        ("deepseek-v3", ["--speculative-draft-attention-backend", "triton"], None),
        ("mimo", ["--attention-backend", "fa3"], "only on Triton and FlashInfer, and the draft would use fa3"),
        ("mimo", ["--decode-attention-backend", "flashinfer"], None),
        ("llama", [DRAFT, model("llama-eagle"), "--attention-backend", "triton"], None),
        ("llama", [ALGORITHM, "EAGLE3", DRAFT, model("llama-eagle3"), "--attention-backend", "fa3"], None),
    ],
)
def test_a_window_that_does_nothing_is_hinted_at(target: str, more: list[str], told: str | None) -> None:
    window = ["--speculative-draft-window-size", "1024", "--speculative-draft-sink-size", "64"]
    line = [model(target), ALGORITHM, "EAGLE", *more]
    hint = asked(*line, *window)["hint"]
    assert asked(*line)["hint"] is None and (hint is None if told is None else told in hint)


def test_a_ladder_past_the_rings_of_deepseek_v4_is_refused_with_the_limit() -> None:
    told = "candidate_steps: got 10; expected 9 at most: DeepSeek-V4's rings hold 10"
    assert told in asked(model("deepseek-v4"), ALGORITHM, "EAGLE", config="aggressive")["refused"]
    for name, config in (("deepseek-v4", "deepseek-v4"), ("deepseek-v3", "aggressive")):
        assert "refused" not in asked(model(name), ALGORITHM, "EAGLE", config=config)


def test_the_rings_are_checked_again_once_the_model_is_downloaded() -> None:
    from sglang.srt.server_args import prepare_server_args

    from sglang_adaptive.sglang_plugin.launch import activation

    server_args = prepare_server_args(["--model-path", NO_MODEL, ALGORITHM, "EAGLE", CONFIG, "aggressive"])
    server_args.model_path = model("deepseek-v4")
    with pytest.raises(ConfigError, match="rings hold 10 draft tokens"):
        activation.unsupported_reason(lambda _: None, server_args)


def test_what_a_line_rules_out_of_its_configuration_is_told(tmp_path: Path) -> None:
    file = tmp_path / "adaptive.json"
    file.write_text('{"policy": "throughput", "audit": {"share": 0.1}, "throughput": {"lookup": true}}')
    line = [model("llama"), ALGORITHM, "EAGLE3", DRAFT, model("llama-eagle3")]
    assert asked(*line, config=str(file))["features_off"] == []
    off = asked(*line, *ATTENTION_DP, config=str(file))["features_off"]
    assert off == ["lookups is off: attention DP", "audit is off: attention DP"]
