"""Sinks and a window for the draft on SGLang's scheduler in this process: requests outgrow the trained length.

Run as a process: ``python -m tests.engine.draft_window_steps FOLDER PAGE``. It prints each script's results with
everything visible to the draft, with sinks and a window by rows of the slot table, and with the same by masks over
whole requests.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from sglang_adaptive.lab.cpu_engine import attention_backend
from sglang_adaptive.lab.cpu_engine.kernels import plan as plans
from sglang_adaptive.sglang_plugin.admin import server_info
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.draft_window import setup_check
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape
from sglang_adaptive.sglang_plugin.draft_window.window import DraftWindow
from tests.engine.stepping import TIERS, Script, Stepper
from tests.engine.zero_step_scripts import prompt

TRAINED, WINDOW = 96, 24
"""The draft's values in these tests; the shipped pair works well beyond them."""
ROPE_THETA = 10000.0
LOOPS = {"overlap": True, "normal loop": False}


class WindowStepper(Stepper):
    """A scheduler whose draft sees only a part of long requests."""

    CONFIG: ClassVar[dict[str, Any]] = {
        "1": {"candidate_steps": TIERS},
        "draft_window": WINDOW,
        "draft_trained_on": TRAINED,
    }


def grow(*depths: int) -> Script:
    """Requests of 60 and of 120 tokens grow at each of *depths* in turn, one turn each; a third joins."""

    def script(lab: Stepper) -> Iterator[None]:
        turns = itertools.cycle(depths)
        lab.ask("a", prompt(lab, 0, 60), 64)
        lab.ask("b", prompt(lab, 1, 120), 40)
        for turn in itertools.count():
            lab.force(next(turns))
            if turn == 8:
                lab.ask("c", prompt(lab, 2, 84), 30)
            if turn > 8 and lab.done():
                return
            yield

    return script


SCRIPTS = {
    **{f"{steps} steps": grow(steps) for steps in (0, 3)},
    "switching": grow(7, 0, 0, 3, 1, 0, 7),
    "short": lambda lab: _short(lab),
}


def _short(lab: Stepper) -> Iterator[None]:
    """One request that never gets long."""
    lab.force(3)
    lab.ask("a", prompt(lab, 0), TRAINED - 60)
    while not lab.done():
        yield


@contextmanager
def masked(shape: Shape) -> Iterator[None]:
    """Let the draft attend to the same tokens as with rows of the slot table, but over whole requests.

    A mask hides the omitted tokens, and the sinks' keys are rotated by angles that are computed here.
    """
    planned: dict[int, tuple[Any, torch.Tensor]] = {}
    attend = attention_backend.padded_attention

    def hiding(found: Any, lengths: torch.Tensor) -> Any:
        """Return a plan of whole requests of *lengths* with the omitted tokens masked."""
        left, keys = shape.left_out(lengths), found.slots.numel() // found.batch
        columns = torch.arange(keys)
        hidden = (columns >= shape.sinks) & (columns < shape.sinks + left[:, None]) & (left[:, None] > 0)
        bias = torch.zeros(found.batch, 1, found.width, keys) if found.bias is None else found.bias
        made = replace(found, bias=bias.masked_fill(hidden[:, None, None], float("-inf")))
        planned[id(made)] = made, left
        return made

    def turning(query: Any, keys: Any, values: Any, plan: Any, scale: float) -> Any:
        if id(plan) not in planned:
            return attend(query, keys, values, plan, scale)
        left, own = planned[id(plan)][1], keys[plan.slots].view(plan.batch, -1, *keys.shape[1:])
        half = keys.shape[-1] // 2
        angles = left[:, None] * ROPE_THETA ** -(torch.arange(half) / half)
        cos, sin = (turned[:, None, None] for turned in (angles.cos(), angles.sin()))
        low, high = own[:, : shape.sinks].split(half, dim=-1)
        own[:, : shape.sinks] = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
        gathered = replace(plan, slots=torch.arange(plan.slots.numel()))
        return attend(query, own.flatten(0, 1), values[plan.slots], gathered, scale)

    def draft_plans(table: Any, rows: Any, seq_lens: Any, *more: Any) -> list[Any]:
        return [hiding(found, seq_lens) for found in plans.draft_plans(table, rows, seq_lens, *more)]

    extending = attention_backend.TorchRefBackend.init_forward_metadata

    def init(backend: Any, forward_batch: Any) -> None:
        extending(backend, forward_batch)
        if forward_batch.forward_mode.is_draft_extend_v2() and backend.plan is not None:
            backend.plan = hiding(backend.plan, forward_batch.seq_lens - forward_batch.extend_seq_lens_cpu[0])

    with (
        mock.patch.object(attention_backend, "padded_attention", turning),
        mock.patch.object(attention_backend, "draft_plans", draft_plans),
        mock.patch.object(attention_backend.TorchRefBackend, "init_forward_metadata", init),
    ):
        yield


def compare(lab: WindowStepper) -> dict[str, Any]:
    """Run every script in the three ways; return the results, and the window of /server_info."""
    window = lab.round.draft_window
    assert window is not None
    found: dict[str, Any] = {"snapshot": window.snapshot(), "scripts": {}}
    for name, loop in itertools.product(SCRIPTS, LOOPS):
        if loop != "overlap" and name != "switching":
            continue
        before = window.passes
        seen = _run(lab, name, loop)
        passes = window.passes - before
        lab.round.draft_window = None
        whole = _run(lab, name, loop)
        with masked(window.shape):
            hidden = _run(lab, name, loop)
        lab.round.draft_window = window
        found["scripts"][f"{name}, {loop}"] = {"whole": whole, "rows": seen, "masks": hidden, "passes": passes}
    found["reasons"], found["told"] = reasons(lab), _told(lab)
    found["fault"] = _faulty(lab, window)
    return found


def reasons(lab: Stepper) -> dict[str, str]:
    """Return the messages for drafts that cannot have a window, or not this one."""
    draft = lab.worker._draft_worker
    config = configuration()
    changes: dict[str, Any] = {
        "MLA": mock.patch.object(draft.draft_runner, "use_mla_backend", True),
        "its own window": mock.patch.object(draft.draft_runner, "sliding_window_size", 128),
        "no long requests": _configured(replace(config, draft_trained_on=8192)),
        "a wide window": _configured(replace(config, draft_window=TRAINED - 2)),
        "no length": _configured(replace(config, draft_trained_on=None), {}),
    }
    found = {}
    for name, change in changes.items():
        with change:
            answer = setup_check.shape_or_reason(lab.worker)
            found[name] = answer if isinstance(answer, str) else "none"
    with _configured(replace(config, draft_window="auto", draft_trained_on=None), {"max_position_embeddings": 500}):
        shape = setup_check.shape_or_reason(lab.worker)
        assert isinstance(shape, Shape), shape
        found["auto"] = f"{shape.window} of {shape.whole}"
    return found


def _told(lab: Stepper) -> dict[str, Any]:
    """Return what /server_info says about a window that is requested and not used."""
    window, lab.round.draft_window = lab.round.draft_window, None
    with _configured(replace(configuration(), draft_window=TRAINED - 2)):
        lab.round.begin_window(lab.worker)
    try:
        assert lab.round.draft_window is None
        told: dict[str, Any] = server_info._adaptive()["draft_window"]
        return told
    finally:
        lab.round.draft_window, lab.round.why_no_window = window, None


@contextmanager
def _configured(config: Any, of_draft: dict[str, Any] | None = None) -> Iterator[None]:
    """Let *config* be the server's, and *of_draft* the configuration in the draft's folder."""
    with (
        mock.patch.object(setup_check, "configuration", lambda: config),
        mock.patch.object(setup_check, "model_config", lambda path: of_draft or {}),
    ):
        yield


def _run(lab: Stepper, name: str, loop: str) -> dict[str, Any]:
    # At zero steps, the draft's choice after every extend shows what it sees.
    ran = lab.run(SCRIPTS[name], every=1 if name == "0 steps" else 8, overlap=LOOPS[loop])
    return {key: ran[key] for key in ("outputs", "drafts", "chosen", "rounds", "free_slots")}


def _faulty(lab: Stepper, window: DraftWindow) -> dict[str, Any]:
    """Return the results of a fault in the window: the draft sees everything, and requests continue."""
    failing: Callable[..., Any] = mock.Mock(side_effect=RuntimeError("planted"))
    with mock.patch.object(DraftWindow, "_shorten", failing):
        ran = _run(lab, "3 steps", "overlap")
    return {**ran, "snapshot": window.snapshot(), "calls": failing.call_count}  # type: ignore[attr-defined]


def main() -> None:
    lab = WindowStepper(Path(sys.argv[1]), "EAGLE3", None, "--page-size", sys.argv[2])
    print(json.dumps(compare(lab)))


if __name__ == "__main__":
    main()
