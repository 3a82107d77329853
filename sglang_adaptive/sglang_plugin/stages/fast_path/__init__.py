"""Skips work that SGLang repeats in every round, with bit-identical results.

Each file is one shortcut with a guard that restores SGLang's own code; ``env`` has the switches.
"""
