"""Which steps to run: hysteresis, the comparison with zero steps, and probes.

May import ``policy.telemetry``, ``policy.throughput.acceptance`` and ``policy.throughput.cost``.
"""
