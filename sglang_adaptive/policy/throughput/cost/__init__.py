"""Seconds of a round by batch size and steps, from a profile and from measured rounds.

May import ``policy.profile``.
"""
