"""Every bad configuration ends in one line with the file, key, value and accepted values."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.simulate.contenders import BUILT_IN_EMA
from sglang_adaptive.policy.base import POLICIES
from sglang_adaptive.policy.config import (
    AdaptiveConfig,
    AuditOptions,
    TraceOptions,
    check_config,
    load_config,
    presets,
    top_level_keys,
)
from sglang_adaptive.policy.ema import EmaOptions, SlotConfig
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.options import options_of
from sglang_adaptive.policy.throughput import ThroughputOptions

GOOD_SLOT = {"candidate_steps": [1, 3]}


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 700
    assert line.startswith(f"{path}: ") and line.count("; expected ") == 1
    return caught.value


def refusal_of(tmp_path: Path, content: str | bytes) -> ConfigError:
    path = tmp_path / "adaptive.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return refusal(path)


FILES = [
    ("", "the file is empty"),
    (" \n\t", "the file is empty"),
    ('{"1": {"candidate_steps": [1, 3]}', "broken JSON at line 1, column 34"),
    ('{\n  "1": {"candidate_steps": [1, 3],}\n}', "broken JSON at line 2"),
    ('{"1": {"candidate_steps": [1, 3]}} {}', "broken JSON at line 1, column 36"),
    ("candidate_steps: [1]", "broken JSON at line 1, column 1"),
    ("[1, 3]", "the top level is [1, 3]"),
    ("[" * 100_000, "nested too deeply"),
    ('{"1": {"candidate_steps": [' + "9" * 5000 + "]}}", "too many digits"),
    (b'{"1": \xff\xfe}', "byte 6 (0xff) is not UTF-8"),
    (json.dumps({"1": GOOD_SLOT}).encode("utf-16"), "byte 0 (0xff) is not UTF-8"),
    (b"\xef\xbb\xbf{}", "broken JSON at line 1, column 1"),
    (b" " * (1 << 20) + b"{}", "is larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("content", "problem"), FILES, ids=range(len(FILES)))
def test_unusable_file(tmp_path: Path, content: str | bytes, problem: str) -> None:
    error = refusal_of(tmp_path, content)
    assert problem in str(error)
    assert error.key is None


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file or directory" in str(refusal(tmp_path / "absent.json"))
    assert refusal(tmp_path).problem == "is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").problem == "is not a regular file"
    assert refusal(Path("/dev/zero")).problem == "is not a regular file"
    (tmp_path / "link").symlink_to("link")
    assert "symbolic links" in str(refusal(tmp_path / "link"))
    # A regular file whose first byte gives an I/O error, even for root.
    assert "cannot be read: Input/output error" in str(refusal(Path("/proc/self/mem")))
    with pytest.raises(ConfigError, match="null"):
        load_config("a\0b")
    with pytest.raises(ConfigError, match=r"^.*two\\nlines\.json.*$"):
        load_config(tmp_path / "two\nlines.json")


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ('{"1": {"candidate_steps": [1]}, "1": {"candidate_steps": [3]}}', "1"),
        ('{"1": {"candidate_steps": [1], "ema_alpha": 0.1, "ema_alpha": 0.2}}', "ema_alpha"),
        ('{"policy": "ema", "policy": "ema", "1": {"candidate_steps": [1]}}', "policy"),
    ],
)  # fmt: skip
def test_repeated_key(tmp_path: Path, content: str, key: str) -> None:
    error = refusal_of(tmp_path, content)
    assert error.key == key and "given more than once" in str(error)


def slot(**entry: Any) -> dict[str, Any]:
    return {"1": {**GOOD_SLOT, **entry}}


NAMED = " or ".join(f'"{name}"' for name in POLICIES)
NAN, INF = float("nan"), float("inf")
BAD = [
    # No slot, or an invalid slot key.
    ({"ema_alpha": 0.2}, None, 'no slot among the keys ["ema_alpha"]'),
    ({"policy": "ema"}, None, "no slot"),
    *[({key: GOOD_SLOT}, key, "not a slot key; expected a batch size") for key in
      ("0", "-1", "+1", "08", "1.5", "1e3", " 1", "1 ", "1_0", "1000001", "9" * 50, "\u0661", ".5")],
    # The slot itself.
    ({"1": [1, 3]}, "1", "got [1, 3]; expected an object"),
    ({"1": {}}, "1.candidate_steps", "missing; expected a non-empty list of integers from 0 to 32"),
    *[(slot(candidate_steps=value), "1.candidate_steps", f"got {json.dumps(value)}; expected a non-empty list")
      for value in ([], "1,3", 3, None, {"1": 3})],
    *[(slot(candidate_steps=[1, 3, value]), "1.candidate_steps[2]", "; expected an integer from 0 to 32")
      for value in (True, 1.0, "3", -1, 33, NAN, None, 10**400)],
    ({"candidate_steps": [1, 3]}, "candidate_steps", "given outside a slot"),
    ({**slot(), "candidate_steps": [1, 3]}, "candidate_steps", "given outside a slot"),
    # Unknown keys, with the nearest known one.
    ({**slot(), "ema_alfa": 0.2}, "ema_alfa", '(did you mean "ema_alpha"?)'),
    ({**slot(), "Policy": "ema"}, "Policy", '(did you mean "policy"?)'),
    ({**slot(), "zzz": 1}, "zzz", "unknown key; expected a batch size as digits or one of policy"),
    ({**slot(), "": 1}, "", "unknown key"),
    ({"source": "x"}, "source", "unknown key"),  # a field that is no option
    (slot(up_histeresis=0), "1.up_histeresis", '(did you mean "up_hysteresis"?)'),
    (slot(candidate_step=[1]), "1.candidate_step", '(did you mean "candidate_steps"?)'),
    (slot(policy="ema"), "1.policy", "unknown key; expected one of candidate_steps"),
    ({**slot(), "x" * 5000: 1}, "x" * 5000, "unknown key"),
    ({**slot(), "a\nb": 1}, "a\nb", "a\\nb: unknown key"),
    ({"\ud800\x1b": 1}, "\ud800\x1b", "\\ud800\\x1b: unknown key"),
    # Policies.
    ({**slot(), "policy": "Ema"}, "policy", f'got "Ema"; expected the policy {NAMED} (did you mean'),
    ({**slot(), "policy": "goodput"}, "policy", 'got "goodput"'),
    ({**slot(), "policy": ["ema"]}, "policy", 'got ["ema"]'),
    ({**slot(), "policy": "x" * 500}, "policy", "xxx ... xxx"),
    ({**slot(), "throughput": {}}, "throughput", 'not an option of the policy "ema"'),
    ({"policy": "throughput", "ema_alpha": 0.2}, "ema_alpha", 'a tuning key of the policy "ema"'),
    ({"throughput": []}, "throughput", "got []; expected an object"),
    ({"throughput": {"margim": 0.1}}, "throughput.margim", "unknown key"),
    # Options of the throughput policy.
    ({"throughput": {"shrinkage": "1%"}}, "throughput.shrinkage", 'got "1%"; expected a number from 0 to 10000'),
    ({"throughput": {"memory_rounds": 1}}, "throughput.memory_rounds", "got 1; expected an integer from 8 to 100000"),
    ({"throughput": {"probe_budget": 0}}, "throughput.probe_budget", "only a probe can leave zero steps"),
    ({"throughput": {"candidate_steps": [0]}}, "throughput.candidate_steps", "expected at least one depth above 0"),
    ({"throughput": {"profile_dir": "a\0b"}}, "throughput.profile_dir", "expected a folder's path"),
    ({"throughput": {"profile_dir": "~no-such-user/x"}}, "throughput.profile_dir", "expected a folder's path"),
    ({"throughput": {"lookup": "yes"}}, "throughput.lookup", 'got "yes"; expected "auto", true or false'),
    ({"throughput": {"lookup": 1}}, "throughput.lookup", "got 1"),
    ({"throughput": {"lookup_texts": "a.jsonl"}}, "throughput.lookup_memory_mb",
     "got 0; expected above 0 beside lookup_texts, whose texts are kept there"),
    # Options of the server.
    *[({"zero_step_extend_every": value}, "zero_step_extend_every", "; expected an integer from 1 to 33")
      for value in (0, 34, 4.0, True, None, "8")],
    ({"warm_up": 1}, "warm_up", "got 1; expected true or false"),
    ({"audit": {"share": 0}}, "audit.share", "got 0; expected a number above 0 up to 1"),
    ({"audit": {"share": 1, "when": "busy"}}, "audit.when", 'got "busy"; expected "idle"'),
    ({"audit": {"share": 1, "when": ["idle"]}}, "audit.when", 'got ["idle"]; expected "idle"'),
    ({"audit": 0.001}, "audit", "got 0.001; expected an object, as in "),
    ({**slot(), "audit": {"share": 1}}, "audit", "the depths are 1, 3; expected 0 among the depths"),
    ({"trace": True}, "trace", "got true; expected an object"),
    ({"trace": {}}, "trace.file", "missing; expected a file's path"),
    ({"trace": {"file": ""}}, "trace.file", 'got ""; expected a file\'s path'),
    ({"trace": {"file": "a", "max_mb": 0}}, "trace.max_mb", "got 0; expected a number"),
    ({"trace": {"file": "a", "size": 1}}, "trace.size", "unknown key; expected one of file, max_mb"),
]  # fmt: skip

BAD_NUMBERS = {
    "ema_alpha": (0, -0.1, 1.01, 2, NAN, INF, "0.2", True, None, [0.2], 10**400),
    "update_interval": (0, -5, 5.0, 1.5, "5", True, None, NAN, 1_000_001, 10**400),
    "warmup_batches": (-1, 10.0, "10", False, None, NAN, INF, 1_000_001),
    "down_hysteresis": (-32.5, 33, NAN, INF, -INF, "0", True, None, {}, 10**400),
    "up_hysteresis": (-32.5, 33, NAN, INF, -INF, "0", False, None, []),
    "ceiling_coeff": (-0.1, 32.5, NAN, INF, -INF, "1", True, None, 10**400),
}
BAD += [
    (config, f"{prefix}{key}", f"; expected {options_of(SlotConfig)[key].expected}")
    for key, values in BAD_NUMBERS.items()
    for value in values
    for prefix, config in (("", {**slot(), key: value}), ("1.", slot(**{key: value})))
]


@pytest.mark.parametrize(("config", "key", "problem"), BAD, ids=range(len(BAD)))
def test_bad_value(tmp_path: Path, config: dict[str, Any], key: str | None, problem: str) -> None:
    error = refusal_of(tmp_path, json.dumps(config))
    assert error.key == key
    assert problem in str(error)


STARTED = {"warm_up": True, "prune_graphs": False, "exact": False}
"""Another value than the default for each key that is read only at server start."""


def test_keys_of_the_start_are_those_and_stay() -> None:
    marked = {name for name, option in options_of(AdaptiveConfig).items() if option.at_start}
    assert marked == STARTED.keys()
    running = check_config({**STARTED, "watch": True, **slot()}, "f").as_dict()
    for asked in ({"throughput": {"shrinkage": 2.0}}, {**STARTED, "zero_step_extend_every": 4}, running):
        kept = check_config(asked, "f").after_start(asked, running)
        assert kept == check_config({**asked, **STARTED}, "f")
    assert check_config({}, "f").after_start({}, check_config({}, "f").as_dict()) == check_config({}, "f")


@pytest.mark.parametrize("key", STARTED)
def test_a_key_of_the_start_is_refused_with_another_value(key: str) -> None:
    default, other = check_config({}, "my.json"), check_config({key: STARTED[key]}, "my.json")
    was = default.as_dict().get(key)
    expected = "no such key" if was is None else json.dumps(was)
    line = f"my.json: {key}: got {json.dumps(STARTED[key])}; expected {expected}: it is read only at server start"
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        other.after_start({key: STARTED[key]}, default.as_dict())
    assert other.after_start({key: STARTED[key]}, {}) == other, "a policy of another plugin has no configuration"


def test_values_and_defaults_arrive(tmp_path: Path) -> None:
    path = tmp_path / "adaptive.json"
    config = {"ema_alpha": 1, "up_hysteresis": 0.5, "32": {"candidate_steps": [5, 0, 5, 32]},
              "2": {"candidate_steps": [1], "up_hysteresis": -0.5, "ceiling_coeff": 1.5}}  # fmt: skip
    path.write_text(json.dumps(config))
    read = load_config(path)
    assert (read.policy, read.source, read.candidate_steps) == ("ema", str(path), [0, 1, 5, 32])
    slots = [(s.batch_size, s.candidate_steps, s.up_hysteresis, s.ceiling_coeff) for s in read.options.slots]
    assert slots == [(2, (1,), -0.5, 1.5), (32, (0, 5, 32), 0.5, 0.0)]
    for entry in read.options.slots:
        assert (entry.ema_alpha, entry.update_interval, entry.warmup_batches) == (1, 5, 10)
        assert entry.down_hysteresis == -0.25


def test_without_a_file_throughput_runs_on_its_defaults() -> None:
    read = load_config()
    assert (read.policy, read.options) == ("throughput", ThroughputOptions())
    assert read.candidate_steps == [0, 1, 2, 3, 5, 7]


def test_presets_are_the_files_of_the_folder() -> None:
    folder = Path(__file__).parents[3] / "configs"
    assert list(presets().values()) == sorted(folder.glob("*.json"), key=lambda path: path.stem)


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_found_by_name_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(name).source == str(presets()[name])


def test_a_file_comes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt-oss").mkdir()
    assert load_config("gpt-oss").source == str(presets()["gpt-oss"]), (
        "a folder, such as a model's, is no configuration"
    )
    Path("throughput").write_text('{"throughput": {"candidate_steps": [1, 2]}}')
    assert load_config("throughput").candidate_steps == [1, 2]


@pytest.mark.parametrize(("name", "like"), [("thruput", "throughput"), ("configs/ngram.json", "ngram"), ("", None)])
def test_what_is_neither_a_file_nor_a_preset_lists_the_presets(
    name: str, like: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    told = f"a readable JSON file, or one of the presets {', '.join(presets())}"
    assert caught.value.expected == (f'{told} (did you mean "{like}"?)' if like else told)


def test_an_error_survives_the_way_to_another_process() -> None:
    error = ConfigError("f.json", "1.ema_alpha", "got 7", "less")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.key) == (str(error), "1.ema_alpha")
    config = check_config(BUILT_IN_EMA, "f")
    assert pickle.loads(pickle.dumps(config)) == config


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(("1", "8", "08", *top_level_keys(), *options_of(SlotConfig))) | st.text(max_size=8)


@given(config=st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=4), max_size=4))
def test_whatever_the_object_it_is_used_or_refused_in_one_line(config: dict[str, Any]) -> None:
    try:
        used = check_config(config, "f.json")
        assert used.candidate_steps and isinstance(used.options, EmaOptions) == (used.policy == "ema")
    except ConfigError as error:
        line = str(error)
        assert line.startswith("f.json: ") and "; expected " in line
        assert line.isprintable() and len(line) < 700


@given(content=st.binary(max_size=40))
def test_random_bytes_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    refusal(path)


def test_depths_above_a_bound_are_left_out_and_the_bound_stays():
    assert check_config({}, "file").options.up_to(3).candidate_steps == (0, 1, 2, 3)
    slots = {"1": {"candidate_steps": [5, 7]}, "8": {"candidate_steps": [0, 1, 5]}}
    kept = check_config(slots, "file").options.up_to(2)
    assert [slot.candidate_steps for slot in kept.slots] == [(2,), (0, 1)]
    assert check_config(kept.as_dict(), "file").candidate_steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("listed", "most", "expected"),
    [
        (None, 15, [0, 1, 3, 7, 15]),
        (None, 9, [0, 1, 3, 7, 9]),
        (None, 1, [0, 1]),
        ([0, 2, 5], 15, [0, 2, 5]),
        ([3, 15, 20], 15, [3, 15]),
    ],
)
def test_default_depths_of_a_block_reach_it(listed: list[int] | None, most: int, expected: list[int]) -> None:
    options = {} if listed is None else {"candidate_steps": listed}
    assert check_config({"throughput": options}, "file").options.of_block(most).candidate_steps == tuple(expected)
    slots = check_config({"1": {"candidate_steps": [1, 3]}}, "file").options
    assert slots.of_block(most).candidate_steps == slots.up_to(most).candidate_steps


def test_a_pipe_that_takes_the_file_s_place_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular, pipe = tmp_path / "config.json", tmp_path / "pipe"
    regular.write_text("{}")
    os.mkfifo(pipe)
    found = os.stat(regular)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path: found)  # the state a moment ago
        error = refusal(pipe)
    assert "is not a regular file" in str(error)


@pytest.mark.timeout(60)  # takes minutes if each key is looked up among all others
def test_a_repeated_key_among_many_is_found_in_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{" + ",".join([*(f'"k{index}":0' for index in range(80_000)), '"last":0', '"last":0']) + "}")
    assert f"{path}: last: the key is given more than once" in str(refusal(path))


@pytest.mark.parametrize("policy", [{}, {"1": {"candidate_steps": [0, 1, 3]}}], ids=["throughput", "ema"])
@pytest.mark.parametrize(
    ("name", "given", "read", "default"),
    [
        ("zero_step_extend_every", 1, 1, 8),
        ("warm_up", False, False, None),
        ("prune_graphs", False, False, True),
        ("trace", {"file": "rounds.trace"}, TraceOptions("rounds.trace", 64.0), None),
        ("audit", {"share": 0.001, "when": "idle"}, AuditOptions(0.001, "idle"), None),
    ],
)
def test_a_server_s_option_stands_beside_any_policy(
    policy: dict[str, Any], name: str, given: Any, read: Any, default: Any
) -> None:
    without, config = check_config(policy, "f"), check_config({**policy, name: given}, "f")
    assert (getattr(config, name), getattr(without, name)) == (read, default)
    assert config.policy == without.policy and check_config(config.as_dict(), "f") == config
    assert default is not None or name not in without.as_dict()
