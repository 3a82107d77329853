"""Runs first in every process started by the CPU engine, and pauses garbage collection while SGLang is imported.

Imports make objects that stay; looking through them again and again takes a fifth of a server's start. The plugin,
which SGLang calls in each process once it is imported, turns collection on again.
"""

import gc

gc.disable()
