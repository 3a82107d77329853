"""Verifies the drafts of a batch that are most likely right, so that requests verify unequal numbers of them.

May import hooking alone.
"""
