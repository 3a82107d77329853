"""Runs SGLang's EAGLE path without a GPU, with kernels written in PyTorch.

For trials, tests and development, not for speed. Active only in a process with the environment of
`serve_cpu.environment`.
"""
