"""Attention DP on two GPUs: output, agreement of the ranks, and rates. See benchmarks/attention_dp/README.md."""
