"""Checks fa3's metadata of a captured verify pass with packed drafts, and with rectangles before and after them.

``TRITON_INTERPRET=1 python -m tests.ragged_checks`` runs the checks without a device and prints one JSON object: null
for each check that passes, else the reason. tests/gpu/test_ragged_graphs.py runs the same on a device.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from sglang_adaptive.sglang_plugin.verify_budget import target_graphs
from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing, packed_input
from sglang_adaptive.sglang_plugin.verify_budget.rounds import PackedRounds
from sglang_adaptive.sglang_plugin.verify_budget.target_graphs import LongestRows, TargetGraphs
from tests import checks

BUDGET, STEPS = 2, 5
WIDTH = BUDGET + 1
GRAPHS = (1, 4)
"""Batch sizes that have a graph."""


def packed_rows_are_each_as_long_as_they_are() -> None:
    """Covers a graph of exactly as many requests and a larger one, whose unused requests take the remaining tokens."""
    for kept in ([5, 0, 1, 2], [2, 4, 0], [5, 5, 0, 0, 0, 2], [2]):
        lab = Lab((1, len(kept)) if len(kept) > 4 else GRAPHS)
        lab.rectangle(len(kept))
        lengths, starts, keys = lab.packed(kept)
        unused = len(starts) - 1 - len(kept)
        assert lengths == [*(count + 1 for count in kept), *[WIDTH] * unused], kept
        assert starts[-1] == WIDTH * (len(starts) - 1), "tokens of the graph belong to nobody"
        assert keys[: len(kept)] == [length + count + 1 for length, count in zip(lab.seq_lens, kept, strict=False)]


def rectangles_after_it_are_what_they_were() -> None:
    """Covers every batch size, because all graphs read one tensor."""
    lab = Lab(GRAPHS)
    before = {requests: lab.rectangle(requests) for requests in (1, 3, 4)}
    lab.packed([5, 0, 1])
    assert {requests: lab.rectangle(requests) for requests in (1, 3, 4)} == before


def it_runs_in_graphs_of_fewer_steps_and_gives_them_back() -> None:
    lab = Lab(GRAPHS)
    own = (lab.runner.attn_backend, lab.runner.decode_cuda_graph_runner)
    rounds = lab.rounds()
    rounds.borrow_graphs(lab.packing([5, 0, 1]))
    assert lab.runner.attn_backend is lab.backend and lab.runner.decode_cuda_graph_runner is lab.runners
    for _ in range(2):
        rounds.give_graphs_back()
        assert (lab.runner.attn_backend, lab.runner.decode_cuda_graph_runner) == own


def rounds_are_packed_whose_slots_are_planned() -> None:
    lab = Lab(GRAPHS)
    rounds = lab.rounds()
    rounds.note_drafts(torch.rand(3, STEPS, device=lab.device))
    packing = rounds.packing(_verify_input(3, lab.device))
    assert packing is not None and len(packing.places) == 3 * WIDTH and rounds.rounds == 1


def batches_and_rows_that_no_graph_has_stay_rectangles() -> None:
    lab = Lab(GRAPHS)
    tokens = lab.graphs.tokens
    assert tokens(BUDGET, 1, STEPS + 1) == WIDTH and tokens(BUDGET, 3, STEPS + 1) == 4 * WIDTH
    assert tokens(BUDGET, 5, STEPS + 1) is None, "more requests than the largest graph"
    assert tokens(BUDGET, 3, STEPS + 2) is None, "rows that the graph was not captured for"
    assert tokens(BUDGET + 1, 3, STEPS + 1) is None, "a number of steps that was never built"
    lab.runners.disable_padding = True
    assert tokens(BUDGET, 1, STEPS + 1) is None, "a graph of another size would be needed"
    lab.state.target_graph_runner = None
    assert tokens(BUDGET, 1, STEPS + 1) is None


def graphs_that_were_captured_again_are_used() -> None:
    """A weight update may rebuild all states."""
    lab = Lab(GRAPHS)
    other = Lab(GRAPHS, longest=lab.longest)
    lab.packed([5, 0, 1])
    lab.state, lab.backend = other.state, other.backend
    before = lab.rectangle(3)
    lab.packed([5, 0, 1])
    assert lab.rectangle(3) == before


class Lab:
    """fa3's backend of BUDGET steps with metadata for graphs of *sizes* requests, captured for STEPS drafts per row."""

    def __init__(self, sizes: tuple[int, ...], device: str | None = None, longest: LongestRows | None = None) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

        from tests.worker_checks import _fa3

        self.device = device or checks.device()
        self.mode = ForwardMode.TARGET_VERIFY
        self.backend = _fa3(is_draft=0, step=0, largest=max(sizes), device=self.device)
        assert self.backend.speculative_num_draft_tokens == WIDTH
        draw = torch.Generator().manual_seed(1)
        table = torch.randint(0, 999, (9, 32), generator=draw, dtype=torch.int32)
        self.backend.req_to_token = table.to(self.device)
        self.backend.kv_index_translator = SimpleNamespace(is_translating=False, reads_are_translated=False)
        self.backend.max_num_pages, self.backend.fa_impl_ver = 32, 3
        self.backend.needs_cpu_seq_lens = False
        self.longest = longest or LongestRows()
        for size in sizes:
            metadata, _ = self.backend._bind_metadata_buffers(size, size * WIDTH, None, self.mode, None, self.device)
            with patch.object(target_graphs, "longest_row", lambda steps: STEPS + 1 if steps == BUDGET else None):
                self.longest.allow(metadata, self.backend, self.mode)
            assert metadata.max_seq_len_q == STEPS + 1
        self.sizes, self.seq_lens = sizes, [7, 21, 3, 11, 2, 9, 16, 5]
        self.runners = SimpleNamespace(
            max_bs=max(sizes), capture_bs=list(sizes), disable_padding=False,
            _pad_to_bucket=DecodeCudaGraphRunner._pad_to_bucket,
        )  # fmt: skip
        self.runner = SimpleNamespace(attn_backend=object(), decode_cuda_graph_runner=object())
        self.state = SimpleNamespace(
            target_attn_backend=self.backend, target_graph_runner=self.runners, speculative_num_draft_tokens=WIDTH
        )
        self.graphs = TargetGraphs(self.runner, lambda steps: self.state if steps == BUDGET else None, self.longest)

    def rounds(self) -> PackedRounds:
        """Return the object that packs rounds with BUDGET."""
        return PackedRounds(lambda: BUDGET, graphs=self.graphs)

    def packing(self, kept: list[int]) -> Packing:
        """Return the packing of requests that keep *kept* drafts each."""
        assert sum(kept) == BUDGET * len(kept)
        return Packing.of(torch.tensor(kept, device=self.device), STEPS, sum(kept) + len(kept))

    def rectangle(self, requests: int) -> dict[str, Any]:
        """Return what fa3 reads in a replay of *requests* with BUDGET drafts each."""
        return _told(self._prepared(requests, SimpleNamespace(ragged_verify_layout=None)))

    def packed(self, kept: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Return query lengths, their prefix sums and key lengths in a packed replay; then release the graphs."""
        packing, rounds = self.packing(kept), self.rounds()
        rounds.borrow_graphs(packing)
        verify = _verify_input(len(kept), self.device)
        slots = torch.arange(len(kept) * (STEPS + 1), device=self.device)
        packed = packed_input(verify, packing, slots, rounds.padded_tokens(packing))
        assert packed.num_tokens_per_req == packed.draft_token_num == WIDTH and packed.kv_loc_plan is None
        told = _told(self._prepared(len(kept), packed))
        rounds.give_graphs_back()
        starts = told["cu_seqlens_q"]
        return (
            [end - start for start, end in itertools.pairwise(starts)],
            starts,
            told["cache_seqlens_int32"],
        )

    def _prepared(self, requests: int, spec: Any) -> Any:
        size = min(size for size in self.sizes if size >= requests)
        lens = torch.ones(size, dtype=torch.int64)
        lens[:requests] = torch.tensor(self.seq_lens[:requests])
        rows = torch.zeros(size, dtype=torch.int64)
        rows[:requests] = torch.arange(1, requests + 1)
        self.backend.init_forward_metadata_out_graph(
            SimpleNamespace(
                forward_mode=self.mode, batch_size=size, seq_lens=lens.to(self.device), seq_lens_cpu=None,
                req_pool_indices=rows.to(self.device), encoder_lens=None, spec_info=spec, kv_loc_plan=None,
                out_cache_loc=None,
            )
        )  # fmt: skip
        return self.backend.forward_metadata


def _told(metadata: Any) -> dict[str, Any]:
    """Return what fa3 reads of *metadata*: each request's table row up to its number of keys."""
    names = ("cu_seqlens_q", "cache_seqlens_int32", "cu_seqlens_k")
    told: dict[str, Any] = {name: getattr(metadata, name).tolist() for name in names}
    rows = zip(metadata.page_table.tolist(), told["cache_seqlens_int32"], strict=True)
    return {**told, "page_table": [row[:length] for row, length in rows]}


def _verify_input(requests: int, device: str) -> Any:
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    width = STEPS + 1
    flat = torch.arange(requests * width, device=device)
    rectangle = flat.view(requests, width)
    return EagleVerifyInput(
        draft_token=flat, custom_mask=None, positions=flat, retrieve_index=rectangle, retrieve_next_token=rectangle,
        retrieve_next_sibling=rectangle, retrieve_cum_len=None, spec_steps=STEPS, topk=1, draft_token_num=width,
        capture_hidden_mode=None, seq_lens_sum=None, seq_lens_cpu=None,
        kv_loc_plan=object(),  # on a GPU the draft plans the slots of every chain
    )  # fmt: skip


if __name__ == "__main__":
    checks.tell("ragged_checks", globals())
