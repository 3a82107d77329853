"""0015: Metadata that the graph of the draft's extend fills in itself is not filled in before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.patch_checks.registry import kept, repaired

REQUESTS, WIDTH = 2, 3


@repaired
def a_graph_that_fills_in_metadata_is_left_to_it() -> None:
    assert replayed(in_graph=True) == ["replay"], replayed(in_graph=True)


@kept
def a_graph_that_does_not_is_prepared() -> None:
    assert replayed(in_graph=False) == ["prepare", "replay"], replayed(in_graph=False)


def replayed(in_graph: bool) -> list[str]:
    """Return the steps of SGLang's runner to replay an extend of REQUESTS requests."""
    from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner

    did: list[str] = []
    runner = object.__new__(EAGLEDraftExtendCudaGraphRunner)
    runner.forward_mode = ForwardMode.DRAFT_EXTEND_V2
    runner.deepep_adapter = SimpleNamespace(replay=lambda: None)
    runner.require_mlp_tp_gather = runner.require_gathered_buffer = False
    runner.capture_bs, runner.captured_req_width, runner.seq_len_fill_value = [REQUESTS], WIDTH, 1
    runner.extend_seq_lens_cpu, runner.buffers = [WIDTH] * REQUESTS, _of_a_batch()
    runner.model_runner = SimpleNamespace(model_config=SimpleNamespace(model_is_mrope=False), device_timer=None)
    runner.draft_extend_attn_backend = SimpleNamespace(
        init_forward_metadata_out_graph=lambda batch: did.append("prepare"),
        draft_extend_metadata_captured_in_graph=lambda: in_graph,
        shared_read_ends=lambda mode: SharedReadEnds.UNKNOWN,
    )
    runner._make_graph_key = lambda requests: requests
    output = SimpleNamespace(next_token_logits=torch.zeros(REQUESTS, 5), hidden_states=torch.zeros(REQUESTS, 4))
    runner._replay_graph = lambda key, batch: did.append("replay") or output
    runner.execute(_batch(), select_index=torch.arange(REQUESTS))
    return did


def _of_a_batch() -> Any:
    tokens, requests = torch.zeros(REQUESTS * WIDTH, dtype=torch.int64), torch.ones(REQUESTS, dtype=torch.int64)
    flat = ("input_ids", "out_cache_loc", "positions")
    rows = ("seq_lens", "req_pool_indices", "extend_seq_lens", "num_correct_drafts", "num_accept_tokens")
    return SimpleNamespace(
        **{name: tokens.clone() for name in flat},
        **{name: requests.clone() for name in (*rows, "select_index", "seq_lens_cpu")},
        hidden_states=None,
        mamba_track_indices=None,
    )


def _batch() -> Any:
    about = SimpleNamespace(hidden_states=None, num_correct_drafts=torch.ones(REQUESTS, dtype=torch.int64))
    about.num_accept_tokens = about.num_correct_drafts
    absent = ("mamba_track_indices", "seq_lens_sum", "extend_seq_lens_cpu", "out_cache_loc_virtual", "kv_loc_plan")
    kept_as_they_are = vars(_of_a_batch())
    return SimpleNamespace(
        **{**kept_as_they_are, **dict.fromkeys((*absent, "kv_loc_cols", "seq_lens_cpu"))}, batch_size=REQUESTS,
        spec_info=about,
    )  # fmt: skip
