"""Run SGLang's EAGLE path on a machine without a GPU, with kernels written in PyTorch.

For trying things out, for tests and for development; not for speed. Nothing here acts unless a process was
started with the environment that `launcher.environment` returns.
"""
