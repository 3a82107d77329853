"""Every architecture among the published launch lines, as a small shape: boots, all depths, losslessness.

    python -m benchmarks.architectures --output DIR [family ...] [--at-once N] [--budget SECONDS]

README.md says what is measured and how a tie is told from an error.
"""
