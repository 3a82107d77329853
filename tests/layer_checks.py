"""Checks what the CUDA graphs of a multi-layer draft extend read, with SGLang's own buffers and kernel."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests import checks

DEVICE = checks.device()

HIDDEN, GRAPHS = 4, (1, 8, 32)
WIDTHS = (1, 2, 3, 4)


def each_row_of_a_graph_reads_one_of_its_hidden_states() -> None:
    """Covers every width and every number of requests in a graph, for the first batch and later ones."""
    from sglang_adaptive.sglang_plugin.workers.multi_layer import begin_within

    begin_within(None)  # without graphs
    for width in WIDTHS:
        graphs, draw = _graphs(width), random.Random(width)
        begin_within(graphs)
        for requests in (2, 1, 8, 3, 9, 32, 17, 2, 1):
            accepted = [draw.randrange(width) for _ in range(requests)]
            rows = _prepare(graphs, width, accepted)
            hidden = torch.arange(len(rows) * width)
            found = hidden[rows].tolist()  # torch raises on a row that does not exist
            assert found[:requests] == [row * width + more for row, more in enumerate(accepted)]


def _graphs(width: int) -> Any:
    """Return SGLang's runner of an extend of *width* tokens per request, with its own buffers and no graphs."""
    from sglang.srt.speculative import multi_layer_eagle_draft_extend_cuda_graph_runner as module

    config = SimpleNamespace(
        dtype=torch.float32, vocab_size=7, hidden_size=HIDDEN, spec_hidden_size=HIDDEN, hf_config=SimpleNamespace()
    )
    model_runner = SimpleNamespace(model_config=config, spec_algorithm=None)
    graphs = object.__new__(module.MultiLayerEagleMultiStepDraftExtendCudaGraphRunner)
    graphs.runners = [SimpleNamespace(model_runner=model_runner)]
    graphs.eagle_worker = SimpleNamespace(mtp_model_runner=lambda _: model_runner)
    graphs.max_bs, graphs.captured_req_width, graphs.seq_len_fill_value = max(GRAPHS), width, 1
    graphs.prune_draft_extend_logits, graphs.require_gathered_buffer = True, False
    graphs.device = DEVICE
    exec_context = SimpleNamespace(mamba=SimpleNamespace(enable_mamba_extra_buffer=False))
    with patch.object(module, "get_exec", lambda: exec_context):
        graphs.buffers = graphs._allocate_buffers()
    return graphs


def _prepare(graphs: Any, width: int, accepted: list[int]) -> torch.Tensor:
    """Fill the buffers as SGLang's ``prepare`` does for requests with *accepted* drafts each; return the rows read."""
    from sglang.srt.speculative.multi_layer_eagle_utils import fill_draft_extend_prepare_buffers_triton

    buffers, requests = graphs.buffers, len(accepted)
    size = next(size for size in GRAPHS if size >= requests)
    counts = torch.tensor(accepted, dtype=torch.int32, device=DEVICE)
    tokens = torch.zeros(requests * width, dtype=torch.int64, device=DEVICE)
    each = torch.ones(requests, dtype=torch.int64, device=DEVICE)
    fill_draft_extend_prepare_buffers_triton(
        *(buffers.input_ids, buffers.positions, buffers.out_cache_loc, tokens, tokens, tokens),
        *(buffers.seq_lens, buffers.req_pool_indices, buffers.num_correct_drafts, buffers.num_accept_tokens),
        *(buffers.select_index, None, each, each, counts, counts + 1, None),
        *(buffers.hidden_states, torch.zeros(requests * width, HIDDEN, device=DEVICE), None, None),
        *(requests, size, width, 0, graphs.seq_len_fill_value),
    )
    return buffers.select_index[:size].cpu()
