"""What the plugin changes in SGLang: only what it lists, and nothing if not enabled."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from tests import checks

PROCESSES = (
    "(Process.ENTRY, Process.EVERY, Process.LAUNCHER, Process.HTTP, Process.SCHEDULER, Process.SCHEDULER_PLAN_STREAM)"
)
"""The processes whose hooks a machine without a GPU can load."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return everything that the tests below ask, from one process."""
    config = tmp_path_factory.mktemp("hooks") / "adaptive.json"
    config.write_text(json.dumps({"1": {"candidate_steps": [0, 1, 3]}}))
    found: dict[str, Any] = checks.scripted(SCRIPT.replace("CONFIG", json.dumps(str(config))))
    assert not found["problems"], f"a seam of sglang_plugin names what SGLang has not: {found['problems']}"
    return found


SCRIPT = f"""
import json, multiprocessing, os, pickle, pkgutil
from sglang_adaptive.sglang_plugin import hooks, register
from sglang_adaptive.sglang_plugin.env import ACTIVE
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.notes import NOTE
problems = hooks.problems()
if problems:  # nothing below would work
    print(json.dumps({{"problems": problems}}))
    raise SystemExit
every = hooks.hooks(*{PROCESSES})
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
untouched = {{"changed": changed(), "active": os.environ.get(ACTIVE), "note": hasattr(stock, NOTE)}}

asked = ServerArgs(model_path="dummy", device="cpu", speculative_adaptive_config=CONFIG, speculative_algorithm="EAGLE3")
asked.resolve_once()
adaptive = {{"changed": changed(), "active": os.environ.get(ACTIVE), "raw": asked.speculative_adaptive,
            "graphs_off": asked.disable_cuda_graph}}
no_algorithm = ServerArgs(model_path="dummy", device="cpu", speculative_adaptive_config=CONFIG)
no_algorithm.resolve_once()
later = ServerArgs(model_path="dummy", device="cpu")
later.resolve_once()
later_active = os.environ.get(ACTIVE)

from pathlib import Path
from sglang.srt.runtime_context import get_context
from sglang_adaptive.sglang_plugin.configuration import configuration
Path(CONFIG).write_text('{{"1": {{"candidate_steps": [7]}}}}')  # between the launch and the start of a child
get_context().set_server_args(pickle.loads(pickle.dumps(asked)))
from sglang.srt.plugins.hook_registry import HookRegistry
def registered(told):
    HookRegistry.reset()
    register()
    told.put(len(HookRegistry._hooks))
fork, in_children = multiprocessing.get_context("fork"), []
for active in "01":
    os.environ[ACTIVE] = active
    told = fork.SimpleQueue()
    fork.Process(target=registered, args=(told,)).start()
    in_children.append(told.get())
HookRegistry.reset()
hooks.install(every)
print(json.dumps({{
    "problems": problems,
    "entry": sorted(h.target for h in hooks.hooks(Process.ENTRY)),
    "launcher": sorted(h.target for h in (*hooks.hooks(Process.ENTRY), *hooks.of_launcher())),
    "untouched": untouched, "adaptive": adaptive,
    "no_algorithm": {{"raw": no_algorithm.speculative_adaptive, "reason": getattr(no_algorithm, NOTE)["reason"]}},
    "later_active": later_active, "in_a_child": configuration().candidate_steps, "in_children": in_children,
    "hooks": {{target: [kind.value for kind, _, _ in found] for target, found in HookRegistry._hooks.items()}},
    "wanted": sorted({{h.target for h in every}}),
    "registered": sum(hooks._is_registered(h) for h in every), "every": len(every),
}}))
"""


def test_every_seam_declares_hooks_and_is_listed() -> None:
    folder = Path(hooks.__file__).parent / "seams"
    assert sorted(hooks.SEAMS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    hooks.hooks(*Process)
    for seam in hooks.SEAMS:
        with mock.patch.object(hooks, "_hooks", []) as declared, mock.patch.object(hooks, "_needs", []):
            importlib.reload(importlib.import_module(f"sglang_adaptive.sglang_plugin.seams.{seam}"))
            assert declared, seam


def test_server_without_the_flags_runs_stock_code(facts: dict[str, Any]) -> None:
    assert facts["untouched"] == {"changed": facts["entry"], "active": None, "note": False}


def test_config_alone_turns_adaptive_on(facts: dict[str, Any]) -> None:
    wanted = {"changed": facts["launcher"], "active": "1", "raw": True, "graphs_off": True}
    assert facts["adaptive"] == wanted, "a CPU goes without graphs"


def test_setup_that_cannot_adapt_stays_static_and_says_why(facts: dict[str, Any]) -> None:
    assert facts["no_algorithm"] == {"raw": False, "reason": "no --speculative-algorithm is given"}
    assert facts["later_active"] is None, "the next server in the process is not adaptive by accident"


def test_a_child_has_what_the_launcher_has_read(facts: dict[str, Any]) -> None:
    assert facts["in_a_child"] == [0, 1, 3], "the file has others by now"


def test_each_function_has_one_hook(facts: dict[str, Any]) -> None:
    """SGLang warns about several AROUND hooks on one function."""
    assert sorted(facts["hooks"]) == facts["wanted"]
    assert {len(kinds) for kinds in facts["hooks"].values()} == {1}
    assert facts["registered"] == facts["every"] == len(facts["wanted"])


@pytest.mark.parametrize("shared", [False, True], ids=["an index of its own", "one that forks share"])
def test_no_module_keeps_a_hooked_function_as_it_was(shared: bool) -> None:
    """If a module imported it by name, the hook must be installed there as well."""
    script = f"""
import json, pkgutil, sys
from types import ModuleType
from sglang.srt.plugins import hook_registry
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.hooks import Importers
assert hook_registry._propagate_patch._shared
if not {shared}:
    hook_registry._propagate_patch = Importers()
every = hooks.hooks(*{PROCESSES})
stock = {{id(found): found for found in (pkgutil.resolve_name(hook.target) for hook in every)}}
def held():
    modules = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [f"{{name}}.{{at}}" for name, module in modules for at, held in vars(module).items() if id(held) in stock]
before = held()
hooks.install_now(every)
importers = hook_registry._propagate_patch
print(json.dumps([len(before), held(), len(importers._seen) + len(importers._places)]))
"""
    places, left, kept = checks.scripted(script)
    assert places > 40 and not left
    assert shared or not kept, "the index of all modules is of no use to a process that serves"


def test_a_second_hook_on_one_function_is_refused() -> None:
    taken = hooks.hooks(Process.ENTRY)[0].target
    with pytest.raises(AssertionError, match="has a hook already"):
        hooks.around(taken)(lambda original: original())


def test_plugin_hooks_more_in_a_child_only_when_told(facts: dict[str, Any]) -> None:
    silent, told = facts["in_children"]
    assert silent == 2 < told
