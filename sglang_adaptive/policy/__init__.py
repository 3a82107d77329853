"""Policies in pure Python: they choose the draft steps from the rounds that they observe.

Start with ``base`` (the interface) and ``observation`` (its input), then read ``throughput.policy`` and its parts
``acceptance``, ``readings``, ``cost``, ``choice`` and ``probing``. ``options`` and ``config`` define the configuration,
and ``ema`` is SGLang's policy. Nothing here imports another part of the package.

The imports below register the policies that a configuration can name.
"""

from sglang_adaptive.policy import ema as ema
from sglang_adaptive.policy import throughput as throughput
