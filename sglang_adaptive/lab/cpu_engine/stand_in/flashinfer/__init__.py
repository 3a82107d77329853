"""Hides FlashInfer, whose kernels need an NVIDIA GPU, from processes started by the CPU engine.

SGLang runs without it, and importing it takes a sixth of a server's start.
"""

raise ImportError("FlashInfer is left out on the CPU engine")
