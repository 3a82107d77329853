"""Policies, pure Python: they choose the draft steps from what rounds showed.

The root holds the interface (``base``), what a policy sees of a round (``observation``), what it may report
(``telemetry``) and its errors. Nothing in ``policy`` imports another part of the package.
"""
