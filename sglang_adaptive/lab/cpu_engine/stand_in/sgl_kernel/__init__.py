"""Replaces SGLang's compiled kernel package in processes of the CPU engine.

Only the launcher puts the folder above this one first on PYTHONPATH. Importing a kernel that the CPU engine does not
have fails as for any package.
"""

from sglang_adaptive.lab.cpu_engine.kernels import *  # noqa: F403

# SGLang compares this against a minimum on some start-up paths.
__version__ = "0.5.0+cpu.engine"
