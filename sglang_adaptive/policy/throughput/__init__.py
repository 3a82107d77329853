"""The throughput policy: it learns acceptance and round times, and chooses the steps with the most tokens a second.

``policy`` holds it together. ``acceptance`` says what steps bring, ``cost`` what they take (from ``readings``),
``budgets`` what verifying fewer drafts keeps, ``choice`` which steps run, ``probing`` which ones to try, and ``report``
why.
"""

from sglang_adaptive.policy.throughput.policy import ThroughputOptions as ThroughputOptions
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy as ThroughputPolicy
