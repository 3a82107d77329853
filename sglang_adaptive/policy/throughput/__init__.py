"""The throughput policy: it learns acceptance and round times, and chooses the steps with the most tokens per second.

``policy`` combines the parts. ``acceptance`` estimates tokens by steps, and ``cost`` round times (from ``readings``).
``choice`` picks the steps, ``probing`` the steps to try, and ``report`` explains the choice.
"""

from sglang_adaptive.policy.throughput.policy import ThroughputOptions as ThroughputOptions
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy as ThroughputPolicy
