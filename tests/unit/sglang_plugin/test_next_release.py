"""The next SGLang, rehearsed: nine changes of `tests.next_release`, each named with the place that relies on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.serve_cpu import environment
from sglang_adaptive.sglang_plugin import bodies, hooks
from tests import next_release
from tests.forked_servers import NO_MODEL, OURS, ROOT
from tests.next_release import CHANGES, RELEASE, RESULTS, Copy
from tests.releases import of_the_newest

pytestmark = of_the_newest

SCRIPT = f"""
import contextlib, io, json
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.launch import checkup
found = {{"release": checkup.sglang_release(), **checkup.contract()}}
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
line = ["--model-path", {NO_MODEL!r}, "--device", "cpu"]
found["static"] = prepare_server_args(line).model_path
adapting = ["--speculative-algorithm", "EAGLE3", "--speculative-adaptive-config", "throughput"]
said = io.StringIO()
try:
    with contextlib.redirect_stderr(said):
        prepare_server_args([*line, *adapting])
except SystemExit as ended:
    found |= {{"code": ended.code, "said": said.getvalue().splitlines()}}
try:
    hooks.require_installed(hook for hook in hooks.hooks(hooks.Process.SCHEDULER) if "eagle_sample" in hook.target)
except hooks.ContractError as error:
    found["not installed"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = next_release.write(tmp_path_factory.mktemp("next") / "site")
    base = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**base, **environment(base=base)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["release"] == RELEASE
    return found


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.target)
def test_each_change_is_named_with_the_place_in_our_code(change: Any, told: dict[str, Any]) -> None:
    for named in change.named:
        assert [line for line in told["missing"] if line.startswith(named)], named
    source = (Path(hooks.__file__).parent / change.seam).read_text()
    assert all(f"def {ours}(" in source or f"{ours}," in source for ours in change.ours.values())
    assert change.target.rpartition(".")[2] in source, "whoever looks for SGLang's name in that file finds it"


def test_nothing_else_is_named_as_missing(told: dict[str, Any]) -> None:
    expected = tuple(named for change in CHANGES for named in change.named)
    (other,) = (line for line in told["missing"] if not line.startswith(expected))
    assert "SchedulerInternalStateController.__init__ (seams/state.py) is missing" in other
    assert not [one for one in told["changed"] if any(line.startswith(one) for line in told["missing"])]


def test_a_launch_that_adapts_ends_and_another_does_not(told: dict[str, Any]) -> None:
    assert told["static"] == NO_MODEL, "without the flag SGLang parses its line as ever"
    (line,) = told["said"]
    assert told["code"] == 2 and line.startswith(f"{OURS}sglang {RELEASE} does not fit, this package supports")
    seen = [line for line in told["missing"] if "draft_extend_set_metadata" not in line]
    assert all(problem in line for problem in seen), "all but what only a CUDA device can import"


def test_a_body_that_has_changed_is_named_and_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy(tmp_path / "site")
    copy.edit(RESULTS, "assert result.next_token_ids.is_cpu\n", "assert result.next_token_ids.is_cpu, 1\n")
    monkeypatch.setattr(bodies, "installed", lambda: copy.folder)
    assert hooks.problems_in_source() == []
    assert [one for one in hooks.changed() if "_resolve_spec_v2_tokens (seams/scheduling.py: Stage.resolve)" in one]


def test_a_hook_that_sglang_did_not_install_is_named_with_its_place(told: dict[str, Any]) -> None:
    named = "sglang.srt.speculative.eagle_utils.eagle_sample (seams/worker.py: Stage.sample)"
    assert told["not installed"] == f"these hooks were not installed: {named}; see the log above"


def no_more(original: object, worker: object, batch: object) -> None: ...
def more_by_name(original: object, worker: object, batch: object, **kwargs: object) -> None: ...
def all_of_it(original: object, *args: object, **kwargs: object) -> None: ...


@pytest.mark.parametrize(
    ("ours", "theirs", "problem"),
    [
        (no_more, "self batch", None),
        (no_more, "self batch plan", "also takes plan, and our function does not"),
        (no_more, "self plan batch", "also takes plan, and our function does not"),
        (no_more, "self", "has no batch"),
        (no_more, "batch self", "takes its parameters in another order: batch, self"),
        (more_by_name, "self batch plan", None),
        (more_by_name, "self plan batch", "takes its parameters in another order: self, plan, batch"),
        (all_of_it, "self batch plan", None),
        (all_of_it, "self plan batch", None),
    ],
)
def test_a_hook_is_named_unless_it_can_be_called_like_sglangs_function(
    ours: Callable[..., None], theirs: str, problem: str | None
) -> None:
    hook = hooks.Hook("a.b", ("self", "batch"), by="ours", kind="around", function=ours, processes=(), before=1)
    told = None if problem is None else f"a.b (ours) {problem}"
    assert hook.misfit(theirs.split()) == told
