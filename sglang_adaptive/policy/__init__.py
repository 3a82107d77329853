"""Policies, pure Python: they choose the draft steps from what rounds showed.

To read them: ``base`` (what a policy is) and ``observation`` (what it is told), then ``throughput.policy``, whose parts
are ``acceptance``, ``readings``, ``cost``, ``budgets``, ``choice`` and ``probing``. ``options`` and ``config`` say how
a policy is configured, ``ema`` is SGLang's. Nothing here imports another part of the package.

The imports below register the policies that a configuration can name.
"""

from sglang_adaptive.policy import ema as ema
from sglang_adaptive.policy import throughput as throughput
