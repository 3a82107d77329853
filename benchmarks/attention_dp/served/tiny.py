"""What ``--host cpu`` serves: a tiny mixture of experts with attention DP on the CPU engine, for rehearsals."""

from __future__ import annotations

from benchmarks.architectures import shapes
from benchmarks.architectures.rehearsal import DRAFT, TINY

_FIELDS = ("architectures", "model_type", "num_experts_per_tok", "decoder_sparse_step", "mlp_only_layers")
TARGET: shapes.Shape = {
    **TINY,
    **{name: shapes.QWEN3_MOE[name] for name in (*_FIELDS, "norm_topk_prob", "rms_norm_eps")},
    "num_experts": 8,
    "moe_intermediate_size": 64,
}
PAIR = (("", TARGET), ("-eagle3", DRAFT))
ARGUMENTS = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--disable-custom-all-reduce"),
    *("--chunked-prefill-size", "256", "--max-running-requests", "96"),
)
# SGLang would look for NCCL and for a memory node a rank; a CPU has gloo and two cores.
VARIABLES = {"SGLANG_NCCL_SO_PATH": "/nowhere/no-nccl", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
