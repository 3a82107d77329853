"""Replaces SGLang's compiled kernel package in processes of the CPU engine.

Only the launcher puts the folder above this one first on PYTHONPATH. Importing a kernel that the CPU engine lacks fails
as it does for any package.
"""

from sglang_adaptive.lab.cpu_engine.kernels.slots import (  # noqa: F401
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sglang_adaptive.lab.cpu_engine.kernels.tree import (  # noqa: F401
    build_tree_kernel_efficient_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

# SGLang compares this against a minimum on some start-up paths.
__version__ = "0.5.0+cpu.engine"
