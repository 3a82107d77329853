"""Disables garbage collection in every process of the CPU engine while SGLang is imported.

Imported objects stay; collecting them repeatedly takes a fifth of a server's start. The plugin, which SGLang calls in
each process after the import, enables collection again for later objects.
"""

import gc

gc.disable()
