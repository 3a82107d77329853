"""Runs SGLang's EAGLE path on a machine without a GPU, with kernels written in PyTorch.

For trials, tests and development; not for speed. It is active only in a process with the environment of
`serve_cpu.environment`.
"""
