"""DFLASH on SGLang's scheduler in this process, in the overlapping loop as well: a width a turn, requests come and go.

With the tiny target's draft, or with one that chooses among candidates (DFlash2): the same with a selector of random
weights. Run as a process; prints what each run wrote, which has to be the same whatever the loop and the widths, and
what each block proposed, which has to depend on the text and on the block's width alone.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from sglang_adaptive.lab.cpu_engine import models
from tests.engine.servers import BLOCK_DEPTHS
from tests.engine.stepping import Stepped

ARRIVALS = {0: ("a", 60), 4: ("b", 5), 9: ("c", 40), 10: ("d", 70)}
"""By turn: who arrives, and for how many tokens."""
ABORTED = ("d", 14)
ARRIVAL_NAMES = tuple(name for name, _ in ARRIVALS.values())
AGAIN, AFTER = ("e", 30), "b"
"""A request that goes on with all of what another was asked and wrote, which the prefix cache has most of."""


class BlockStepper(Stepped):
    """One scheduler whose worker drafts blocks."""

    def __init__(self, folder: Path, draft: str, *more: str) -> None:
        config = {"throughput": {"candidate_steps": list(BLOCK_DEPTHS)}}
        drafting = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft)
        super().__init__(folder, config, *drafting, *more)
        self._log_blocks()

    def write(self, depths: Sequence[int], overlap: bool) -> dict[str, Any]:
        """Run the requests of ARRIVALS with one of *depths* after the other, a turn each."""
        self._forget_keys_and_values()
        self.drafts.clear()
        before = self.controller.snapshot()["rounds_by_tier"]
        turns, turn = itertools.cycle(depths), itertools.count()

        def step() -> bool:
            now = next(turn)
            self.force(next(turns))
            if now in ARRIVALS:
                name, tokens = ARRIVALS[now]
                self.ask(name, self.encode(models.prompts("easy")[len(self.reqs)] * (1 + now // 9)), tokens)
            if now == ABORTED[1]:
                self.abort(ABORTED[0])
            if self.reqs.keys() == {*ARRIVAL_NAMES} and now > ABORTED[1] and self.done(AFTER):
                before = self.reqs[AFTER]
                self.ask(AGAIN[0], [*before.origin_input_ids, *before.output_ids_through_stop], AGAIN[1])
            return AGAIN[0] in self.reqs and self.done()

        self.play(step, overlap)
        after = self.controller.snapshot()
        whole = [(name, req) for name, req in self.reqs.items() if name != ABORTED[0]]
        return {
            "outputs": {name: list(req.output_ids_through_stop) for name, req in whole},
            "drafts": list(self.drafts),
            "ran": [int(steps) for steps, n in after["rounds_by_tier"].items() if n > before.get(steps, 0)],
            "accepted": sum(after["accepted_by_tier"].values()),
            "degraded": after["degraded_reason"],
            "left_for_later": self._left_for_later(),
            "free_slots": self.free_slots(),
        }

    def _left_for_later(self) -> tuple[int, int]:
        """Return how many zero-step rounds left the draft's keys and values for later so far, and what made them."""
        deferred = self.worker.deferred
        assert deferred is not None and deferred.guard.error is None and deferred._pending.rounds <= deferred._every
        found = deferred.snapshot()
        return found["held_rounds"], found["extends"]

    def write_without_features(self, depths: Sequence[int]) -> dict[str, Any]:
        """The same where the draft gets no keys and values of what zero-step rounds write."""
        append = self.worker._append_target_hidden_to_draft_kv_by_loc

        def forgetful(**kwargs: Any) -> None:
            if kwargs.get("commit_lens") is None or self.worker.block_size > 1:
                append(**kwargs)

        with mock.patch.object(self.worker, "_append_target_hidden_to_draft_kv_by_loc", forgetful):
            return self.write(depths, overlap=False)

    def sample(self) -> dict[str, Any]:
        """Sample with a width a turn; say what the verify of choices used, and whether it left chances behind."""
        accept, shapes, memories = self.worker._selector_sampling_accept, [], []

        def logged(**kwargs: Any) -> Any:
            found = accept(**kwargs)
            chances = self.worker._draft_probs_buf
            shapes.append((kwargs["candidates"].shape[1], chances.shape[1], bool(chances.any())))
            memories.append(chances.data_ptr())
            return found

        turns = itertools.cycle((1, 0, 3, 7, 15, 7, 0, 15, 1))

        def step() -> bool:
            self.force(next(turns))
            for name in ARRIVAL_NAMES[len(self.reqs) :]:
                self.ask(name, self.encode(models.prompts("easy")[len(self.reqs)]), 40, temperature=1.0)
            return self.done()

        with mock.patch.object(self.worker, "_selector_sampling_accept", logged):
            self.play(step, overlap=True)
        return {
            "tokens": [len(req.output_ids_through_stop) for req in self.reqs.values()],
            "shapes": shapes,
            "memories": len(set(memories[len(memories) // 2 :])),
            "free_slots": self.free_slots(),
            "degraded": self.controller.snapshot()["degraded_reason"],
        }

    def built(self) -> dict[str, Any]:
        """Say whether each width has backends of its own."""
        states = self.controller.states
        backends = [part for state in states for part in (state.draft_attn_backend, state.target_attn_backend)]
        return {"states": len(states), "backends": len({id(part) for part in backends if part is not None})}

    def _log_blocks(self) -> None:
        """Keep what each request's block proposed: (prompt's first tokens, position, the block's tokens)."""
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

    def _forget_keys_and_values(self) -> None:
        """Overwrite the draft's, or a run would find those of the one before it where it wrote none itself."""
        pool = self.worker.draft_model_runner.token_to_kv_pool
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer.normal_(std=30, generator=torch.Generator().manual_seed(0))


def choosing(folder: Path) -> str:
    """Write a DFlash2 draft: the tiny target's draft, and what chooses among three candidates."""
    made = folder / "choosing"
    shutil.copytree(models.block_draft_path(), made)
    config = json.loads((made / "config.json").read_text())
    config["dflash_config"] |= {"selector_rank": 8, "selector_top_k": 3}
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


def main() -> None:
    folder = Path(sys.argv[1])
    lab = BlockStepper(folder, choosing(folder) if sys.argv[2] == "DFlash2" else models.block_draft_path())
    long = (*[0] * 11, 15, 15)  # zero-step rounds beyond what is kept at a time
    ladders = {
        False: ((0,), BLOCK_DEPTHS, (15, 0), (0, 0, 0, 7)),
        True: ((15,), BLOCK_DEPTHS, (7, 7, 1, 1, 1, 0, 3), (0, 0, 15), long),
    }
    runs = [lab.write(depths, overlap) for overlap in ladders for depths in ladders[overlap]]
    found = {"runs": runs, "forgetful": lab.write_without_features((15, 0)), "built": lab.built()}
    print(json.dumps({**found, "draft": sys.argv[2], "sampled": lab.sample()}))


if __name__ == "__main__":
    main()
