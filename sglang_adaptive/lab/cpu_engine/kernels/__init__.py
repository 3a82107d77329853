"""The functions of `sgl_kernel` that SGLang's EAGLE path calls on a CPU, written in PyTorch.

They keep SGLang's names and argument order, because SGLang calls them by position, and write their results into tensors
of the caller. None of them imports SGLang.
"""

from __future__ import annotations

from sglang_adaptive.lab.cpu_engine.kernels.sample import (
    keep_top_k_cpu,
    keep_top_p_cpu,
    murmur_hash32_cpu,
    sample_tree_cpu,
)
from sglang_adaptive.lab.cpu_engine.kernels.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
)
from sglang_adaptive.lab.cpu_engine.kernels.tree import build_tree_kernel_efficient_cpu, rotate_input_ids_cpu
from sglang_adaptive.lab.cpu_engine.kernels.verify import (
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "keep_top_k_cpu",
    "keep_top_p_cpu",
    "murmur_hash32_cpu",
    "rotate_input_ids_cpu",
    "sample_tree_cpu",
    "verify_tree_greedy_cpu",
]
