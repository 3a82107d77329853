"""The events in ``tests.gathering_ranks``, by round; ranges are half-open."""

ROUNDS = 300
WARM, IDLE, FORCED, FAILS = (20, 40), (100, 130), (200, 240), 250
"""Rank 0 warms up; rank 0 idles; an operator holds 7 steps; rank 1's policy fails."""
