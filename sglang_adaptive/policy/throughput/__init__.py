"""The throughput policy: it learns acceptance and round times, and chooses the steps with the most tokens per second.

``policy`` combines the parts. ``acceptance`` estimates tokens by steps. ``readings`` compares rounds, and ``fit`` and
``cost`` make round times of that, starting from those of ``base_cost``; ``rows`` keeps them for decisions. ``choice``
picks the steps and explains them, ``probing`` picks those to try, ``lookups`` the rounds that look drafts up.

A *kind* of rounds is a number of steps, or of drafts to look up, which is never a number of steps.
"""

from sglang_adaptive.policy.throughput.policy import ThroughputOptions as ThroughputOptions
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy as ThroughputPolicy
