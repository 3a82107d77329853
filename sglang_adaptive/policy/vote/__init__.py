"""One number of steps for ranks that run their rounds together, from one row of integers a rank.

May import nothing else of ``policy``.
"""
