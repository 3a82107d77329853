"""Which steps to run: what a switch must promise, the comparison with zero steps, and probes.

May import ``policy.telemetry``, ``policy.throughput.acceptance`` and ``policy.throughput.cost``.
"""
