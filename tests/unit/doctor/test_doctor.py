"""``sglang-adaptive doctor``: parsing of launch lines, and checks that need no SGLang.

tests/engine/test_command_line.py tests what it asks SGLang itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sglang_adaptive import doctor
from sglang_adaptive.doctor import NOTE, OK, PROBLEM, WORTH, Check, advice, machine_checks, main, take_apart
from sglang_adaptive.sglang_plugin.contract import RELEASES, supported
from tests.answering import answering
from tests.fakes import ema, serve, with_alarm
from tests.refusals import refused

FITS: dict[str, list[str]] = {"missing": [], "changed": []}
ARGUMENTS = ["--model-path", "M", "--port=1"]


LINES = (
    *("python -m sglang.launch_server", "numactl -N 0 /usr/bin/python3.12 -u -m sglang.launch_server"),
    *("sglang serve", "/opt/venv/bin/sglang serve", ""),
)


@pytest.mark.parametrize("words", LINES)
def test_arguments_of_a_launch_line(words: str) -> None:
    line = take_apart([*words.split(), *ARGUMENTS])
    assert (line.arguments, line.variables, line.on_cpu) == (ARGUMENTS, {}, False)


def test_variables_in_front_and_the_cpu_engine() -> None:
    line = take_apart(["A=1", "SGLANG_PLUGINS=a,b=c", "sglang-adaptive", "serve-cpu", *ARGUMENTS])
    assert line.arguments == ARGUMENTS and line.on_cpu
    assert line.variables == {"A": "1", "SGLANG_PLUGINS": "a,b=c"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", "vllm", "serve", "M"], "no launch line in 'vllm serve M'; expected python -m sglang.launch_server"),
        (["--"], "no launch line in ''; expected"),
        (["--url", "http://h:1", "--", "sglang", "serve"], "--url and a launch line: expected one of them"),
        (["one", "two"], "unrecognized arguments: two"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, ["doctor", *words])
    assert said.startswith("sglang-adaptive doctor: error: ") and told in said


def test_configuration_and_server_that_are_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.json"
    path.write_text('{"1": {"candidate_steps": [true]}}')
    assert main([str(path), "--url", "http://127.0.0.1:9", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and found["verdict"] == "2 problems to fix: configuration, server."
    assert [check["status"] for check in found["checks"]] == [PROBLEM, PROBLEM]
    assert "1.candidate_steps[0]: got true" in found["checks"][0]["words"]
    assert "does not answer" in found["checks"][1]["words"]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    found = {"device": {"kind": "cpu", "torch": "2"}, "sglang": RELEASES[-1], "contract": FITS, "doors": None}
    monkeypatch.setattr(doctor, "_ask", lambda line: found)
    return found


def local() -> dict[str, Check]:
    return {check.name: check for check in machine_checks(None)}


def test_plugin_that_sglang_is_told_to_leave_out(answer: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert local()["plugin"].status == OK
    monkeypatch.setenv("SGLANG_PLUGINS", "other, sglang_adaptive_cpu_engine")
    assert local()["plugin"] == Check(
        "plugin", PROBLEM, "SGLANG_PLUGINS is 'other, sglang_adaptive_cpu_engine', which leaves out sglang_adaptive"
    )


def test_what_sglang_lacks_and_what_fails_are_problems(answer: dict[str, object]) -> None:
    gpu = {"kind": "gpu", "names": ["NVIDIA H200"] * 2, "gibibytes": [140, 140], "torch": "2"}
    answer |= {"contract": {"missing": ["a.b is missing"], "changed": ["a.c"]}, "device": gpu}
    found = local()
    assert (found["SGLang"].status, found["device"].status) == (PROBLEM, OK)
    fault = f"does not fit, this package supports {supported()}: a.b is missing"
    assert found["SGLang"].words == f"{RELEASES[-1]} {fault}\n         these hooked functions have changed: a.c"
    assert found["device"].words == "NVIDIA H200, 140 GiB and NVIDIA H200, 140 GiB; torch 2"
    answer.clear()
    answer["failure"] = "ImportError: no torch"
    assert local()["SGLang"].words == "it could not be checked further: ImportError: no torch"


@pytest.mark.parametrize(
    ("release", "changed", "status", "words"),
    [
        (RELEASES[0], [], OK, " fits: it has everything that this package hooks and calls"),
        (RELEASES[0], ["a.b", "a.c"], NOTE, f" fits; these hooked functions are not those of {supported()}: a.b, a.c"),
        ("0.5.99", [], NOTE, f" fits; it is not tested, but its hooked functions are those of {supported()}"),
        ("0.5.99", ["a.b"], NOTE, f" fits; these hooked functions are not those of {supported()}: a.b"),
    ],
)
def test_sglang_that_fits(answer: dict[str, object], release: str, changed: list[str], status: str, words: str) -> None:
    answer |= {"sglang": release, "contract": {"missing": [], "changed": changed}}
    assert local()["SGLang"] == Check("SGLang", status, release + words)


def test_launch_answers_and_verdicts(answer: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    def verdict(**launch: object) -> tuple[int, str]:
        answer["launch"] = launch
        code = main(["--", "sglang", "serve", "--model-path", "M"])
        return code, capsys.readouterr().out.strip().splitlines()[-1]

    fine = {"asked": True, "reason": None, "attention_backend": "fa3", "device": "cuda", "steps": 3}
    assert verdict(**fine) == (0, "Verdict: this launch line would serve with adaptive speculation.")
    assert verdict(**{**fine, "asked": False}) == (1, "Verdict: 1 problem to fix: launch line.")
    assert verdict(**{**fine, "reason": "topk"}) == (1, "Verdict: 1 problem to fix: launch line.")
    assert verdict(refused="no such flag") == (1, "Verdict: 1 problem to fix: launch line.")
    code, told = verdict(asked=True, reason=None, unresolved="there is no GPU here")
    assert code == 0 and told.startswith("Verdict: the arguments of this launch line are fine")
    assert verdict(**fine, greedy_verify="no temperature")[0] == 0
    assert Check("sampling", NOTE, "no temperature") in machine_checks(None)
    answer["launch"] = {"asked": True, "reason": None, "unresolved": "there is no GPU here"}
    assert {check.name: check.status for check in machine_checks(None)}["launch line"] == NOTE


def test_a_replica_that_has_failed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sound, failed = ema(), ema()
    failed.policy_failed(RuntimeError("planted"))
    states = [{"adaptive": {**serve(one, 4, 0.5), "off": {"relay": "ValueError: broken"}}} for one in (sound, failed)]
    answer = json.dumps({"internal_states": states})
    with answering(200, answer.encode()) as url:
        assert main(["--url", url]) == 1
    said = capsys.readouterr().out
    assert "replica 1" in said and "planted" in said and "replica 0" not in said
    assert "features: off: relay (ValueError: broken)" in said


def test_alarms_of_every_replica_are_problems(capsys: pytest.CaptureFixture[str]) -> None:
    states = [{"adaptive": serve(with_alarm(ema(), words), 4, 0.5)} for words in ("one", "two")]
    with answering(200, json.dumps({"internal_states": states}).encode()) as url:
        assert main(["--url", url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    problems = [(check["name"], check["words"]) for check in found["checks"] if check["status"] == PROBLEM]
    causes = "; docs/troubleshooting.md has likely causes"
    assert problems == [("acceptance", f"one{causes}"), ("replica 1", f"acceptance: two{causes}")]
    assert found["verdict"] == "2 problems to fix: acceptance, replica 1."


MEASUREMENTS = Path(__file__).parents[3] / "docs" / "measurements.md"
TREE = "speculative_eagle_topk=4 (only topk=1 is supported)"


def test_what_adapting_is_worth_is_what_the_performance_page_says() -> None:
    row = re.search(r"against the best single depth, geometric mean \| [^|]* \| ([\d.]+)", MEASUREMENTS.read_text())
    assert row is not None and float(row[1]) == pytest.approx(WORTH, abs=0.02)


@pytest.mark.parametrize("launch", [{"steps": 6, "depths": [0, 1, 3, 5]}, {"steps": None, "depths": None}])
def test_tree_becomes_a_chain_of_a_depth_that_the_configuration_has(launch: dict[str, object]) -> None:
    words = advice(TREE, launch)
    assert words is not None
    assert "--speculative-eagle-topk 1 --speculative-num-steps 5 --speculative-num-draft-tokens 6" in words


def test_reason_that_nothing_is_known_about() -> None:
    assert advice("SGLang turned it off while it resolved the arguments; its log says why", {}) is None
