"""Drafts other than EAGLE's on SGLang's scheduler in this process: one depth per turn, in both loops.

Outputs must not depend on the loop and the depths.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from sglang_adaptive.lab.cpu_engine import models
from tests.engine import assistant
from tests.engine.round_scripts import pair
from tests.engine.servers import BLOCK_DEPTHS
from tests.engine.servers import TIERS as DEPTHS
from tests.engine.stepping import Asked, Stepped, Stepper, forget_keys_and_values
from train import cut

ARRIVALS = {"a": (0, 44), "b": (4, 5), "c": (9, 30), "d": (10, 70)}
"""Requests: the turn at which each arrives, and its number of tokens."""
ABORTED = ("d", 14)
Ladders = dict[bool, tuple[Sequence[int], ...]]
"""Depths of the runs, by whether the loop overlaps."""


class Arriving(Stepped):
    """A scheduler that gets the requests of ARRIVALS, one of which is aborted."""

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests with each of *depths* in turn, one turn each."""
        asked: dict[str, Asked] = {}
        for index, (name, (turn, tokens)) in enumerate(ARRIVALS.items()):
            text = self.encode(models.prompts("easy")[index] * (1 + turn // 9))
            asked[name] = (turn, [100 + index, *text], tokens, {})
        return self.serve(asked, depths, overlap, ABORTED)


def _written(lab: Arriving, ladders: Ladders) -> list[dict[str, Any]]:
    return [lab.write(depths, overlap) for overlap in ladders for depths in ladders[overlap]]


# -- STANDALONE: a model of its own ----------------------------------------------------------------------------------

LAYERS = 2
"""Of the target's eight: keys and values of the second depend on the first layer's attention."""
SCRIPTS = ("resume after 32", "come and go", "second turn", "leave early", "retract")


def standalone(folder: Path) -> list[dict[str, Any]]:
    """Run the zero-step SCRIPTS with an extend in every round and with held rows, and once with rows never extended."""
    draft = cut.write(folder / "draft", LAYERS, Path(models.target_path()))
    lab = Stepper(folder, "STANDALONE", str(draft))
    pairs = [pair(lab, name, every=8) for name in SCRIPTS]
    pairs.append(pair(lab, "come and go", every=3, overlap=False))
    deferred = lab.deferred
    for script, context in (("resume after 32", 56), ("come and go", 98)):  # all requests are near its end, then one
        with mock.patch.object(deferred, "_context", context):
            pairs.append(pair(lab, script, every=8))
    with mock.patch.object(deferred, "_run", lambda *_, **__: deferred._pending.settle() or deferred._held.clear()):
        pairs.append(pair(lab, "resume after 32", every=8, fault="never extended"))
    return pairs


# -- Frozen-KV MTP: the target's keys and values ---------------------------------------------------------------------


class FrozenKvStepper(Arriving):
    """A scheduler whose draft reads the target's KV."""

    def __init__(self, folder: Path) -> None:
        target, draft = assistant.write(folder)
        drafting = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", draft)
        super().__init__(folder, {"throughput": {"candidate_steps": list(DEPTHS)}}, "--model-path", target, *drafting)
        self._log_drafts()

    def built(self) -> dict[str, Any]:
        """Build another state while the draft has a graph, switch through all, and return what the draft holds."""
        draft, runner = self.worker._draft_worker, self.worker._draft_worker.draft_model_runner
        launch = draft.draft_attn_backend
        draft.cuda_graph_runner = "of the live depth"
        further = self.worker.build_adaptive_runtime_state(5, 6)
        kept = (draft.cuda_graph_runner, draft.draft_attn_backend is launch, runner.attn_backend is launch)
        draft.cuda_graph_runner = None
        backends, in_force = [further.draft_attn_backend, further.target_attn_backend], []
        for state in self.controller.states.by_steps:
            self.worker.apply_runtime_state(state)
            in_force.append(runner.attn_backend is draft.draft_attn_backend is state.draft_attn_backend)
            backends += [state.draft_attn_backend, state.target_attn_backend]
        return {
            "states": len(in_force) + 1,
            "backends": len(set(map(id, backends))),
            "in_force": all(in_force),
            "graph_of_another_depth": further.cuda_graph_runner is not None,
            "kept": kept,
        }


def frozen_kv(folder: Path) -> dict[str, Any]:
    lab = FrozenKvStepper(folder)
    ladders: Ladders = {False: ((0,), DEPTHS), True: ((7,), DEPTHS, (3, 3, 1, 0, 0, 0, 0, 0))}
    return {"runs": _written(lab, ladders), "built": lab.built()}


# -- DFLASH: whole blocks --------------------------------------------------------------------------------------------

AGAIN, AFTER = ("e", 30), "b"
"""A request that continues all of another's prompt and output, most of which is in the prefix cache."""


class BlockStepper(Arriving):
    """A scheduler whose worker drafts blocks."""

    def __init__(self, folder: Path, draft: str) -> None:
        config = {"throughput": {"candidate_steps": list(BLOCK_DEPTHS)}}
        drafting = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft)
        super().__init__(folder, config, *drafting)
        self._log_blocks()

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        forget_keys_and_values(self.worker.draft_model_runner)
        return {**super().write(depths, overlap), "left_for_later": self._left_for_later()}

    def over(self) -> bool:
        if AGAIN[0] in self.reqs or AFTER not in self.reqs:
            return self.done()
        if self.done(AFTER):
            before = self.reqs[AFTER]
            self.ask(AGAIN[0], [*before.origin_input_ids, *before.output_ids_through_stop], AGAIN[1])
        return False

    def _left_for_later(self) -> tuple[int, int]:
        """Return how many zero-step rounds have deferred the draft's keys and values so far, and what wrote them."""
        deferred = self.worker.deferred
        assert deferred is not None and deferred.guard.error is None and deferred._pending.rounds <= deferred._every
        found = deferred.snapshot()
        return found["held_rounds"], found["extends"]

    def write_without_features(self, depths: Sequence[int]) -> dict[str, Any]:
        """Run the same without the draft's keys and values of the tokens that zero-step rounds write."""
        append = self.worker._append_target_hidden_to_draft_kv_by_loc

        def forgetful(**kwargs: Any) -> None:
            if kwargs.get("commit_lens") is None or self.worker.block_size > 1:
                append(**kwargs)

        with mock.patch.object(self.worker, "_append_target_hidden_to_draft_kv_by_loc", forgetful):
            return self.write(depths, overlap=False)

    def write_at_once(self, depths: Sequence[int]) -> list[dict[str, Any]]:
        """Run the same without held rounds, and with a fault in the append of held ones: SGLang appends each round."""
        deferred, every = self.worker.deferred, self.worker.deferred._every
        before = deferred.snapshot()
        deferred.set_every(1)
        found = [{**self.write(depths, overlap=True), "kept": deferred.snapshot() | {"extend_every": every} == before}]
        deferred.set_every(every)
        with mock.patch.object(deferred, "_run", side_effect=RuntimeError("planted")):
            failed = super().write(depths, overlap=True)
        return [*found, {**failed, "kept": deferred._pending.rounds > 0, "error": deferred.guard.error}]

    def sample(self) -> dict[str, Any]:
        """Sample with one width per turn; return what the verify of choices used and whether it left probabilities."""
        accept, shapes, memories = self.worker._selector_sampling_accept, [], []

        def logged(**kwargs: Any) -> Any:
            found = accept(**kwargs)
            chances = self.worker._draft_probs_buf
            shapes.append((kwargs["candidates"].shape[1], chances.shape[1], bool(chances.any())))
            memories.append(chances.data_ptr())
            return found

        asked: dict[str, Asked] = {
            text: (0, self.encode(text), 40, {"temperature": 1.0}) for text in models.prompts("easy")[:4]
        }
        with mock.patch.object(self.worker, "_selector_sampling_accept", logged):
            found = self.serve(asked, (1, 0, 3, 7, 15, 7, 0, 15, 1), overlap=True)
        return {**found, "shapes": shapes, "memories": len(set(memories[len(memories) // 2 :]))}

    def built(self) -> dict[str, Any]:
        """Return whether each width has its own backends."""
        states = self.controller.states.by_steps
        backends = [part for state in states for part in (state.draft_attn_backend, state.target_attn_backend)]
        return {"states": len(states), "backends": len({id(part) for part in backends if part is not None})}

    def _log_blocks(self) -> None:
        """Record each block's proposal: (request, position, the block's tokens)."""
        accept, forward = self.worker._accept_block, self.worker.forward_batch_generation
        running: list[Any] = []

        def launched(batch: Any, *args: Any, **kwargs: Any) -> Any:
            running[:] = batch.reqs
            return forward(batch, *args, **kwargs)

        def logged(**kwargs: Any) -> Any:
            places = kwargs["prefix_lens"].tolist()
            for req, place, block in zip(running, places, kwargs["candidates"].tolist(), strict=True):
                self.drafts.append((req.rid, place, block))
            return accept(**kwargs)

        self.worker._accept_block, self.worker.forward_batch_generation = logged, launched
        self.scheduler.model_worker = self.worker


def choosing(folder: Path) -> str:
    """Write a DFlash2 draft: the tiny target's draft, with a random selector among four candidates."""
    made = folder / "choosing"
    shutil.copytree(models.block_draft_path(), made)
    config = json.loads((made / "config.json").read_text())
    config["dflash_config"] |= {"selector_rank": 8, "selector_top_k": 4}
    (made / "config.json").write_text(json.dumps({**config, "architectures": ["DFlash2DraftModel"]}))
    shapes = {
        "predecessor_codebook": (config["vocab_size"], 8),
        "successor_codebook": (config["vocab_size"], 8),
        "hidden_projection.weight": (8, config["hidden_size"]),
    }
    drawn = torch.Generator().manual_seed(1)
    weights = {f"candidate_selector.{name}": torch.randn(shape, generator=drawn) / 4 for name, shape in shapes.items()}
    save_file(weights, made / "selector.safetensors")
    return str(made)


def blocks(folder: Path, draft: str) -> dict[str, Any]:
    lab = BlockStepper(folder, draft)
    long = (*[0] * 11, 15, 15)  # more zero-step rounds than are kept at a time
    ladders: Ladders = {
        False: ((0,), BLOCK_DEPTHS),
        True: ((15,), BLOCK_DEPTHS, (7, 7, 1, 1, 1, 0, 3), (0, 0, 15), long),
    }
    found = {"runs": _written(lab, ladders), "forgetful": lab.write_without_features((15, 0)), "built": lab.built()}
    return {**found, "sampled": lab.sample(), "at_once": lab.write_at_once((0, 0, 15))}


DRAFTS: dict[str, Callable[[Path], Any]] = {
    "STANDALONE": standalone,
    "FROZEN_KV_MTP": frozen_kv,
    "DFLASH": lambda folder: blocks(folder, models.block_draft_path()),
    "DFlash2": lambda folder: blocks(folder, choosing(folder)),
}


def run(folder: Path, draft: str) -> Any:
    return DRAFTS[draft](folder)
