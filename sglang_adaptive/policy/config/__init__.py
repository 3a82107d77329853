"""The configuration of a policy: its keys, its checks, its file, and which steps it may use.

May import ``policy.errors`` alone.
"""
