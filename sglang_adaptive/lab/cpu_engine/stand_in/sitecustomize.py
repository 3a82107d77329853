"""Disables garbage collection in every process of the CPU engine while SGLang is imported.

Imports create objects that stay; collecting them repeatedly takes a fifth of a server's start. The plugin, which SGLang
calls in each process after the import, enables collection again, of what comes later.
"""

import gc

gc.disable()
