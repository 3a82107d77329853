"""The throughput policy: it learns acceptance and round times, and chooses the steps with the most tokens a second.

May import every room of ``policy`` but ``ema``.
"""
