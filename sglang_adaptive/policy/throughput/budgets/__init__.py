"""Which budget goes with which steps: what it yields, and when it is taken.

May import ``policy.observation``, ``policy.throughput.acceptance`` and ``policy.throughput.cost``.
"""
