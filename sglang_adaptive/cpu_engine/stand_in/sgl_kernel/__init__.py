"""Takes the place of SGLang's compiled kernel package in processes started by the CPU engine.

The launcher puts the folder above this one first on PYTHONPATH, and nobody else does. A name that is missing here is
a kernel that the CPU engine does not have: importing it fails as it would for any package.
"""

from sglang_adaptive.cpu_engine.kernels import *  # noqa: F403

# SGLang compares this against a minimum on some start-up paths.
__version__ = "0.5.0+cpu.engine"
