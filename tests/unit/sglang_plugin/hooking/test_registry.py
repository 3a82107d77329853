"""What the plugin touches of SGLang: nothing it does not list, and nothing at all where it is not asked."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_adaptive.sglang_plugin.hooking import registry
from tests import checks

PROCESSES = (
    "(Process.ENTRY, Process.EVERY, Process.LAUNCHER, Process.HTTP, Process.SCHEDULER, "
    "Process.SCHEDULER_PLAN_STREAM, Process.SCHEDULER_VERIFY_BUDGET)"
)
"""Those whose hooks a machine without a GPU can load."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that the tests below ask, from one process."""
    config = tmp_path_factory.mktemp("hooks") / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [0, 1, 3]}}))
    found: dict[str, Any] = checks.scripted(SCRIPT.replace("CONFIG", json.dumps(str(config))))
    assert not found["problems"], f"a HOOKS or NEEDS of sglang_plugin names what SGLang has not: {found['problems']}"
    return found


SCRIPT = f"""
import json, os, pkgutil
from sglang_adaptive.sglang_plugin import ACTIVE
from sglang_adaptive.sglang_plugin.hooking import registry
from sglang_adaptive.sglang_plugin.hooking.hook import Process
problems = registry.problems()
if problems:  # nothing below would work
    print(json.dumps({{"problems": problems}}))
    raise SystemExit
every = registry.hooks(*{PROCESSES})
def bare(target):
    found = pkgutil.resolve_name(target)
    return getattr(found, "__func__", found)  # a class method is bound anew at every look
before = {{h.target: bare(h.target) for h in every}}

from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
def changed():
    return sorted({{h.target for h in every if bare(h.target) is not before[h.target]}})
stock = ServerArgs(model_path="dummy", device="cpu")
stock.resolve_once()
untouched = {{"changed": changed(), "active": os.environ.get(ACTIVE), "note": hasattr(stock, "_sglang_adaptive")}}

asked = ServerArgs(model_path="dummy", device="cpu", speculative_adaptive_config=CONFIG, speculative_algorithm="EAGLE3")
asked.resolve_once()
adaptive = {{"changed": changed(), "active": os.environ.get(ACTIVE), "raw": asked.speculative_adaptive,
            "graphs_off": asked.disable_cuda_graph}}
no_algorithm = ServerArgs(model_path="dummy", device="cpu", speculative_adaptive_config=CONFIG)
no_algorithm.resolve_once()
later = ServerArgs(model_path="dummy", device="cpu")
later.resolve_once()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.reset()
registry.add(every)
print(json.dumps({{
    "problems": problems,
    "entry": sorted({{h.target for h in registry.hooks(Process.ENTRY)}}),
    "launcher": sorted({{h.target for h in (*registry.hooks(Process.ENTRY), *registry.of_launcher())}}),
    "untouched": untouched, "adaptive": adaptive,
    "no_algorithm": {{"raw": no_algorithm.speculative_adaptive, **no_algorithm._sglang_adaptive}},
    "later_active": os.environ.get(ACTIVE),
    "hooks": {{target: [kind.value for kind, _, _ in found] for target, found in HookRegistry._hooks.items()}},
    "wanted": sorted({{h.target for h in every}}),
    "registered": sum(h.load() in registry._registered(h.target) for h in every), "every": len(every),
}}))
"""


def test_installed_sglang_fits(facts: dict[str, Any]) -> None:
    """The fixture says what does not."""


def test_a_room_declares_the_hooks_of_its_own_functions() -> None:
    plugin = Path(registry.__file__).parents[1]
    rooms = [path.parent.name for path in plugin.glob("*/__init__.py") if "\nHOOKS = " in path.read_text()]
    assert sorted(rooms) == sorted(registry.ROOMS)
    for room in rooms:
        functions = [hook.function for hook in import_module(f"sglang_adaptive.sglang_plugin.{room}").HOOKS]
        assert all(function.startswith(f"{room}.") for function in functions)


def test_server_without_the_flags_runs_stock_code(facts: dict[str, Any]) -> None:
    assert facts["untouched"] == {"changed": facts["entry"], "active": None, "note": False}


def test_config_alone_turns_adaptive_on(facts: dict[str, Any]) -> None:
    assert facts["adaptive"]["raw"] is True and facts["adaptive"]["active"] == "1"
    assert facts["adaptive"]["changed"] == facts["launcher"]


def test_cpu_goes_without_graphs(facts: dict[str, Any]) -> None:
    assert facts["adaptive"]["graphs_off"] is True


def test_setup_that_cannot_adapt_stays_static_and_says_why(facts: dict[str, Any]) -> None:
    assert facts["no_algorithm"] == {"raw": False, "reason": "no --speculative-algorithm is given"}


def test_next_server_in_the_process_is_not_adaptive_by_accident(facts: dict[str, Any]) -> None:
    assert facts["later_active"] is None


def test_one_hook_for_each_function_stands_for_all_of_the_package(facts: dict[str, Any]) -> None:
    """SGLang warns of several AROUND hooks on one function."""
    assert sorted(facts["hooks"]) == facts["wanted"]
    assert {len(kinds) for kinds in facts["hooks"].values()} == {1}
    assert facts["registered"] == facts["every"] > len(facts["wanted"])


def test_hooks_on_one_function_run_as_sglang_would_run_them() -> None:
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    def original(*said: str) -> list[str]:
        return ["original", *said]

    def before(*said: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        return (*said, "before"), {}

    def around(inner: Any, *said: str) -> list[str]:
        return ["around", *inner(*said, "around")]

    def after(result: list[str], *said: str) -> list[str]:
        return [*result, "after", *said]

    def silent(result: list[str], *said: str) -> None:
        """Changes nothing."""

    kinds = {before: "before", around: "around", after: "after", silent: "after"}
    for order in permutations(kinds):
        expected = original
        for function in order:
            expected = _wrap_fn(expected, function, HookType(kinds[function]))
        hooks: Any = [SimpleNamespace(load=lambda f=function: f, kind=kinds[function]) for function in order]
        composed = _wrap_fn(original, registry._composed(hooks), HookType.AROUND)
        assert [composed("a"), composed("b")] == [expected("a"), expected("b")]


def test_plugin_hooks_more_in_a_child_only_when_told(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1]) == {"silent": 2, "told": 3}


CHILD = """
import json, multiprocessing, os

def registered(queue):
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang_adaptive.sglang_plugin import register
    register()
    queue.put(len(HookRegistry._hooks))

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    answers = {}
    for name, value in (("silent", "0"), ("told", "1")):
        os.environ["SGLANG_ADAPTIVE_ACTIVE"] = value
        queue = spawn.Queue()
        child = spawn.Process(target=registered, args=(queue,))
        child.start()
        answers[name] = queue.get()
        child.join()
    print(json.dumps(answers))
"""
