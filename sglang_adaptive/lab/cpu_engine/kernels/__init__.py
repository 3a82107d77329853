"""The functions of `sgl_kernel` that SGLang's speculative workers call on a CPU, written in PyTorch.

They keep SGLang's names and argument order, because SGLang calls them by position, and write results into the caller's
tensors. None of them imports SGLang.
"""
